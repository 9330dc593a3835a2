#include "fake_device.h"

#include "ggml-backend-impl.h"

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

namespace fake_device {

namespace {

constexpr size_t alignment = 64;

std::atomic<uint64_t> n_sets{ 0 };
std::atomic<uint64_t> n_gets{ 0 };
std::atomic<uint64_t> max_bytes{ 0 };
std::atomic<int64_t>  n_left{ -1 }; // writes that still succeed

void note(std::atomic<uint64_t> & counter, uint64_t n_bytes) {
    counter++;
    uint64_t most = max_bytes.load();
    while (n_bytes > most && !max_bytes.compare_exchange_weak(most, n_bytes)) {
    }
}

void note_set(uint64_t n_bytes) {
    note(n_sets, n_bytes);
    if (n_left == 0) {
        n_left = -1;
        throw std::runtime_error("the fake device refuses a write");
    }
    if (n_left > 0) {
        n_left--;
    }
}

uint8_t * at(const ggml_tensor * tensor, size_t offset) {
    return static_cast<uint8_t *>(tensor->data) + offset;
}

//
// buffers
//

void buffer_free(ggml_backend_buffer_t buffer) {
    free(buffer->context);
}

void * buffer_base(ggml_backend_buffer_t buffer) {
    return buffer->context;
}

void buffer_memset(ggml_backend_buffer_t, ggml_tensor * tensor, uint8_t value, size_t offset, size_t size) {
    memset(at(tensor, offset), value, size);
}

void buffer_set(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size) {
    note_set(size);
    memcpy(at(tensor, offset), data, size);
}

void buffer_get(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size) {
    note(n_gets, size);
    memcpy(data, at(tensor, offset), size);
}

void buffer_set_2d(ggml_backend_buffer_t, ggml_tensor * tensor, const void * data, size_t offset, size_t size,
                   size_t n_copies, size_t stride_tensor, size_t stride_data) {
    note_set(size * n_copies);
    for (size_t i = 0; i < n_copies; ++i) {
        memcpy(at(tensor, offset + i * stride_tensor), static_cast<const uint8_t *>(data) + i * stride_data, size);
    }
}

void buffer_get_2d(ggml_backend_buffer_t, const ggml_tensor * tensor, void * data, size_t offset, size_t size,
                   size_t n_copies, size_t stride_tensor, size_t stride_data) {
    note(n_gets, size * n_copies);
    for (size_t i = 0; i < n_copies; ++i) {
        memcpy(static_cast<uint8_t *>(data) + i * stride_data, at(tensor, offset + i * stride_tensor), size);
    }
}

bool buffer_copy(ggml_backend_buffer_t, const ggml_tensor * src, ggml_tensor * dst) {
    ggml_backend_buffer_t from = src->view_src ? src->view_src->buffer : src->buffer;
    if (!ggml_backend_buffer_is_host(from) && from->iface.set_tensor != buffer_set) {
        return false;
    }
    memcpy(dst->data, src->data, ggml_nbytes(src));
    return true;
}

void buffer_clear(ggml_backend_buffer_t buffer, uint8_t value) {
    memset(buffer->context, value, buffer->size);
}

const char * buffer_type_name(ggml_backend_buffer_type_t) {
    return "Fake";
}

ggml_backend_buffer_t buffer_type_alloc(ggml_backend_buffer_type_t type, size_t size) {
    void * memory =
        aligned_alloc(alignment, std::max<size_t>(alignment, (size + alignment - 1) / alignment * alignment));
    if (!memory) {
        return nullptr;
    }
    ggml_backend_buffer_i iface = {};
    iface.free_buffer           = buffer_free;
    iface.get_base              = buffer_base;
    iface.memset_tensor         = buffer_memset;
    iface.set_tensor            = buffer_set;
    iface.get_tensor            = buffer_get;
    iface.set_tensor_2d         = buffer_set_2d;
    iface.get_tensor_2d         = buffer_get_2d;
    iface.cpy_tensor            = buffer_copy;
    iface.clear                 = buffer_clear;
    return ggml_backend_buffer_init(type, iface, memory, size);
}

size_t buffer_type_alignment(ggml_backend_buffer_type_t) {
    return alignment;
}

ggml_backend_buffer_type_t buffer_type() {
    static ggml_backend_buffer_type type = [] {
        ggml_backend_buffer_type result = {};
        result.iface.get_name           = buffer_type_name;
        result.iface.alloc_buffer       = buffer_type_alloc;
        result.iface.get_alignment      = buffer_type_alignment;
        result.device                   = device();
        return result;
    }();
    return &type;
}

//
// backend
//

ggml_backend_dev_t cpu() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

const char * backend_name(ggml_backend_t) {
    return "Fake";
}

void backend_free(ggml_backend_t backend) {
    ggml_backend_free(static_cast<ggml_backend_t>(backend->context));
    delete backend;
}

ggml_status backend_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    return ggml_backend_graph_compute(static_cast<ggml_backend_t>(backend->context), graph);
}

//
// device
//

const char * device_name(ggml_backend_dev_t) {
    return "Fake";
}

const char * device_description(ggml_backend_dev_t) {
    return "host memory in disguise";
}

void device_memory(ggml_backend_dev_t, size_t * free_bytes, size_t * total) {
    *free_bytes = *total = size_t{ 1 } << 32;
}

enum ggml_backend_dev_type device_type(ggml_backend_dev_t) {
    return GGML_BACKEND_DEVICE_TYPE_GPU;
}

void device_props(ggml_backend_dev_t, ggml_backend_dev_props * props) {
    *props             = {};
    props->name        = "Fake";
    props->description = "host memory in disguise";
    props->type        = GGML_BACKEND_DEVICE_TYPE_GPU;
    device_memory(nullptr, &props->memory_free, &props->memory_total);
}

ggml_backend_t device_init(ggml_backend_dev_t dev, const char *) {
    static uint8_t guid[16]      = { 'f', 'a', 'k', 'e' };
    auto *         backend       = new ggml_backend{};
    backend->guid                = &guid;
    backend->iface.get_name      = backend_name;
    backend->iface.free          = backend_free;
    backend->iface.graph_compute = backend_compute;
    backend->device              = dev;
    backend->context             = ggml_backend_dev_init(cpu(), nullptr);
    return backend;
}

ggml_backend_buffer_type_t device_buffer_type(ggml_backend_dev_t) {
    return buffer_type();
}

bool device_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    return ggml_backend_dev_supports_op(cpu(), op);
}

bool device_supports_buffer_type(ggml_backend_dev_t, ggml_backend_buffer_type_t type) {
    return type == buffer_type();
}

const char * reg_name(ggml_backend_reg_t) {
    return "Fake";
}

size_t reg_device_count(ggml_backend_reg_t) {
    return 1;
}

ggml_backend_dev_t reg_device(ggml_backend_reg_t, size_t) {
    return device();
}

} // namespace

ggml_backend_dev_t device() {
    static ggml_backend_reg    reg     = {};
    static ggml_backend_device dev     = {};
    static const bool          is_made = [] {
        reg.api_version            = GGML_BACKEND_API_VERSION;
        reg.iface.get_name         = reg_name;
        reg.iface.get_device_count = reg_device_count;
        reg.iface.get_device       = reg_device;

        dev.iface.get_name        = device_name;
        dev.iface.get_description = device_description;
        dev.iface.get_memory      = device_memory;
        dev.iface.get_type        = device_type;
        dev.iface.get_props       = device_props;
        dev.iface.init_backend    = device_init;
        dev.iface.get_buffer_type = device_buffer_type;
        dev.iface.supports_op     = device_supports_op;
        dev.iface.supports_buft   = device_supports_buffer_type;
        dev.reg                   = &reg;
        return true;
    }();
    (void) is_made;
    return &dev;
}

counts take_counts() {
    return { n_sets.exchange(0), n_gets.exchange(0), max_bytes.exchange(0) };
}

void fail_set_after(int64_t n_good) {
    n_left = n_good;
}

} // namespace fake_device
