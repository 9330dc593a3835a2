// What ggml-metal.cpp calls of llama.cpp's Objective-C files, on the fake device: a device with one queue, shared and
// private buffers. Tensors of private buffers have addresses that exist nowhere, as on a Mac.
#include "ggml_metal.h"

#include "fake_metal.h"
#include "ggml-backend-impl.h"
#include "ggml-metal-context.h"
#include "metal/metal_cpp.h"
#include "objc_runtime.h"

#include <cstdlib>
#include <cstring>
#include <unistd.h>

struct ggml_metal_device {
    ggml_metal_device_props props;
    MTL::Device *           device;
    MTL::CommandQueue *     queue;
    uintptr_t               next_private = 0x400;
};

struct ggml_metal_buffer {
    ggml_metal_device_t device;
    MTL::Buffer *       metal;
    uint8_t *           base;
    size_t              n_bytes;
    bool                is_shared;
};

struct ggml_metal {
    ggml_metal_device_t device;
};

namespace {

ggml_metal_device the_device{};

} // namespace

void fake_ggml_metal::open(bool has_shared_buffers) {
    the_device.props                    = {};
    the_device.props.use_shared_buffers = has_shared_buffers;
    the_device.props.max_buffer_size    = 1 << 30;
    the_device.device                   = fake_metal::make_device();
    the_device.queue                    = fake_metal::make_queue(the_device.device);
}

void fake_ggml_metal::close() {
    the_device.queue->release();
    the_device.device->release();
}

MTL::CommandQueue * fake_ggml_metal::queue() {
    return the_device.queue;
}

MTL::Buffer * fake_ggml_metal::buffer_of(const ggml_tensor * tensor) {
    return static_cast<ggml_metal_buffer_t>(tensor->buffer->context)->metal;
}

extern "C" {

ggml_metal_device_t ggml_metal_device_get(int, int) {
    return &the_device;
}

void * ggml_metal_device_get_obj(ggml_metal_device_t device) {
    return device->device;
}

void * ggml_metal_device_get_queue(ggml_metal_device_t device) {
    return device->queue;
}

const ggml_metal_device_props * ggml_metal_device_get_props(ggml_metal_device_t device) {
    return &device->props;
}

ggml_metal_t ggml_metal_init(ggml_metal_device_t device) {
    return new ggml_metal{ device };
}

void ggml_metal_free(ggml_metal_t context) {
    delete context;
}

void ggml_metal_synchronize(ggml_metal_t context) {
    fake_metal::run_all(context->device->queue);
}

void ggml_metal_set_n_cb(ggml_metal_t, int) {}

ggml_metal_buffer_t ggml_metal_buffer_init(ggml_metal_device_t device, size_t size, bool shared) {
    const auto page   = static_cast<size_t>(sysconf(_SC_PAGESIZE));
    auto *     buffer = new ggml_metal_buffer{};
    buffer->device    = device;
    buffer->n_bytes   = (size + page - 1) / page * page;
    buffer->is_shared = shared && device->props.use_shared_buffers;
    buffer->metal     = device->device->newBuffer(buffer->n_bytes, buffer->is_shared ? MTL::ResourceStorageModeShared
                                                                                     : MTL::ResourceStorageModePrivate);
    if (buffer->is_shared) {
        buffer->base = static_cast<uint8_t *>(buffer->metal->contents());
    } else {
        buffer->base = reinterpret_cast<uint8_t *>(device->next_private);
        device->next_private += buffer->n_bytes;
    }
    return buffer;
}

void ggml_metal_buffer_free(ggml_metal_buffer_t buffer) {
    buffer->metal->release();
    delete buffer;
}

void * ggml_metal_buffer_get_base(ggml_metal_buffer_t buffer) {
    return buffer->base;
}

bool ggml_metal_buffer_is_shared(ggml_metal_buffer_t buffer) {
    return buffer->is_shared;
}

ggml_metal_buffer_id ggml_metal_buffer_get_id(ggml_metal_buffer_t buffer, const ggml_tensor * tensor) {
    const auto at = static_cast<size_t>(static_cast<uint8_t *>(tensor->data) - buffer->base);
    return at + ggml_nbytes(tensor) <= buffer->n_bytes ? ggml_metal_buffer_id{ buffer->metal, at }
                                                       : ggml_metal_buffer_id{ nullptr, 0 };
}
}
