// Commands in one MTLCommandQueue, which other code uses too: they begin in the order in which they are committed, and
// Metal's hazard tracking lets each see what those before it wrote to the resources it uses.
#pragma once

#include "metal_cpp.h"

#include <deque>
#include <mutex>
#include <string>

namespace kernels {

// A command buffer that is being encoded. Whatever happens, its encoders are ended: Metal stops a process that drops
// an encoder which is not.
class metal_commands {
  public:
    metal_commands() = default;
    ~metal_commands() { end(); }
    metal_commands(const metal_commands &)             = delete;
    metal_commands & operator=(const metal_commands &) = delete;

    bool is_open() const { return buffer_.get() != nullptr; }

    // The encoder of its kind, which is begun if the last one is of the other kind; begins a command buffer if there
    // is none. Both belong to this. Throws cachegen::error.
    MTL::BlitCommandEncoder *    blit(MTL::CommandQueue * queue);
    MTL::ComputeCommandEncoder * compute(MTL::CommandQueue * queue);

    // metal_memory::version() of the resources that the encoder of launches has been told of; 0: of none
    uint64_t named_version() const { return named_version_; }
    void     set_named_version(uint64_t version) { named_version_ = version; }

    // ends the encoders and gives the command buffer away; nothing is open then
    NS::SharedPtr<MTL::CommandBuffer> take();

  private:
    void begin(MTL::CommandQueue * queue);
    void end();

    NS::SharedPtr<MTL::CommandBuffer>         buffer_;
    NS::SharedPtr<MTL::BlitCommandEncoder>    blit_;
    NS::SharedPtr<MTL::ComputeCommandEncoder> compute_;
    uint64_t                                  named_version_ = 0;
};

// What has been committed and is not known to be done. All functions on any thread.
class metal_queue {
  public:
    explicit metal_queue(MTL::CommandQueue * queue) : queue_(NS::RetainPtr(queue)) {}
    metal_queue(const metal_queue &)             = delete;
    metal_queue & operator=(const metal_queue &) = delete;

    MTL::CommandQueue * get() const { return queue_.get(); }

    // commit what has been encoded, if anything has; returns the command buffer, to be waited for
    NS::SharedPtr<MTL::CommandBuffer> commit(metal_commands & commands);

    // Until these commands, and all that were committed before them, are done. Throws cachegen::error when any has
    // failed, now or before: nothing that was decoded since then is whole.
    void wait(const NS::SharedPtr<MTL::CommandBuffer> & last);
    void wait_for_all();

  private:
    void wait_for(const std::deque<NS::SharedPtr<MTL::CommandBuffer>> & commands);
    void check(MTL::CommandBuffer * commands);

    NS::SharedPtr<MTL::CommandQueue>              queue_;
    std::mutex                                    mutex_;
    std::deque<NS::SharedPtr<MTL::CommandBuffer>> committed_;
    int32_t                                       failed_status_ = 0;
    std::string                                   failed_words_;
};

} // namespace kernels
