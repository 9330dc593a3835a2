#include "metal_queue.h"

#include "metal_errors.h"
#include "status.h"

#include <algorithm>

namespace kernels {

using namespace cachegen;

void metal_commands::begin(MTL::CommandQueue * queue) {
    if (!is_open()) {
        // keeps the buffers that commands name until they are done
        buffer_ = kept(queue->commandBuffer(), "a command buffer");
    }
}

void metal_commands::end() {
    if (blit_.get() != nullptr) {
        blit_->endEncoding();
        blit_.reset();
    }
    if (compute_.get() != nullptr) {
        compute_->endEncoding();
        compute_.reset();
    }
}

MTL::BlitCommandEncoder * metal_commands::blit(MTL::CommandQueue * queue) {
    begin(queue);
    if (blit_.get() == nullptr) {
        end();
        blit_ = kept(buffer_->blitCommandEncoder(), "an encoder of copies");
    }
    return blit_.get();
}

MTL::ComputeCommandEncoder * metal_commands::compute(MTL::CommandQueue * queue) {
    begin(queue);
    if (compute_.get() == nullptr) {
        end();
        // serial: a launch sees what the one before it wrote
        compute_       = kept(buffer_->computeCommandEncoder(), "an encoder of launches");
        named_version_ = 0;
    }
    return compute_.get();
}

NS::SharedPtr<MTL::CommandBuffer> metal_commands::take() {
    end();
    return std::move(buffer_);
}

NS::SharedPtr<MTL::CommandBuffer> metal_queue::commit(metal_commands & commands) {
    NS::SharedPtr<MTL::CommandBuffer> buffer = commands.take();
    if (buffer.get() != nullptr) {
        const std::lock_guard<std::mutex> lock(mutex_);
        committed_.push_back(buffer);
        buffer->commit();
    }
    return buffer;
}

void metal_queue::check(MTL::CommandBuffer * commands) {
    if (commands->status() == MTL::CommandBufferStatusCompleted || failed_status_ != 0) {
        return;
    }
    try {
        fail_with_commands(commands->error());
    } catch (const error & failure) {
        failed_status_ = failure.status;
        failed_words_  = failure.message;
    }
}

void metal_queue::wait_for(const std::deque<NS::SharedPtr<MTL::CommandBuffer>> & commands) {
    for (const auto & one : commands) {
        one->waitUntilCompleted();
    }
    const std::lock_guard<std::mutex> lock(mutex_);
    for (const auto & one : commands) {
        const auto found = std::find(committed_.begin(), committed_.end(), one);
        if (found != committed_.end()) { // else another thread has looked at it
            check(one.get());
            committed_.erase(found);
        }
    }
    if (failed_status_ != 0) {
        throw error(static_cast<cachegen_status>(failed_status_), failed_words_);
    }
}

void metal_queue::wait(const NS::SharedPtr<MTL::CommandBuffer> & last) {
    std::deque<NS::SharedPtr<MTL::CommandBuffer>> commands;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        const auto                        found = std::find(committed_.begin(), committed_.end(), last);
        if (found != committed_.end()) {
            commands.assign(committed_.begin(), found + 1);
        }
    }
    wait_for(commands);
}

void metal_queue::wait_for_all() {
    std::deque<NS::SharedPtr<MTL::CommandBuffer>> commands;
    {
        const std::lock_guard<std::mutex> lock(mutex_);
        commands = committed_;
    }
    wait_for(commands);
}

} // namespace kernels
