#include "fake_metal.h"

#include "fake_kernels.h"
#include "metal_cpp.h"
#include "objc_runtime.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <sys/mman.h>
#include <unistd.h>
#include <vector>

namespace fake_metal {

const char * const failure_words = "the fake device was told to fail";

namespace {

using objc::broken;
using objc::object;

settings             now;
counters             count;
std::recursive_mutex device_mutex; // commands run and are committed one at a time
std::mutex           failing_mutex;

uint64_t page_size() {
    return static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

// the calls that can fail, in turn
bool fails(bool is_command = false) {
    if (now.fails_commands_only && !is_command) {
        return false;
    }
    const std::lock_guard<std::mutex> lock(failing_mutex);
    return ++count.n_failing == now.fail_at;
}

struct string : object {
    std::string text;
};

struct error : object {
    int64_t  code  = 0;
    string * words = nullptr;
    ~error() { objc::release(words); }
};

string * make_string(const std::string & text) {
    auto * const made = objc::make<string>("NSString");
    made->text        = text;
    return made;
}

error * make_error(int64_t code, const std::string & words) {
    auto * const made = objc::make<error>("NSError");
    made->code        = code;
    made->words       = make_string(words);
    return made;
}

void report(NS::Error ** to) {
    if (to != nullptr) {
        *to = reinterpret_cast<NS::Error *>(objc::autorelease(make_error(1, failure_words)));
    }
}

struct options : object {
    std::optional<int64_t> math_mode;
    std::optional<int64_t> functions;
    std::optional<bool>    is_fast;

    // no product and sum as one, no reciprocal for a quotient
    bool keeps_bits() const {
        return now.has_math_mode ? math_mode == int64_t{ MTL::MathModeSafe } &&
                                       functions == int64_t{ MTL::MathFloatingPointFunctionsPrecise }
                                 : is_fast == false;
    }
};

struct device : object {};

// Memory with two views: the host's, and the device's, which is closed but while a launch runs that was told of it.
struct buffer : object {
    uint64_t  n_bytes  = 0; // length
    uint64_t  n_mapped = 0;
    uint8_t * bytes    = nullptr; // ours
    uint8_t * there    = nullptr; // at gpuAddress
    void *    borrowed = nullptr; // the caller's memory, which bytes are a copy of while commands run
    uint64_t  mode     = 0;

    ~buffer() {
        munmap(bytes, n_mapped);
        munmap(there - page_size(), n_mapped + 2 * page_size());
    }

    void open(int protection) const {
        if (mprotect(there, n_mapped, protection) != 0) {
            broken("mprotect");
        }
    }
    void take_in() const {
        if (borrowed != nullptr) {
            memcpy(bytes, borrowed, n_bytes);
        }
    }
    void give_back() const {
        if (borrowed != nullptr) {
            memcpy(borrowed, bytes, n_bytes);
        }
    }
};

buffer * make_buffer(uint64_t n_bytes, uint64_t mode) {
    auto * const made = objc::make<buffer>("MTLBuffer");
    made->n_bytes     = n_bytes;
    made->mode        = mode;
    made->n_mapped    = (n_bytes + page_size() - 1) / page_size() * page_size();
    const int file    = memfd_create("buffer", 0);
    if (file < 0 || ftruncate(file, static_cast<off_t>(made->n_mapped)) != 0) {
        broken("memfd_create");
    }
    void * const here  = mmap(nullptr, made->n_mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
    // a closed page before and after
    void * const space = mmap(nullptr, made->n_mapped + 2 * page_size(), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    auto * const at    = static_cast<uint8_t *>(space) + page_size();
    void * const there = mmap(at, made->n_mapped, PROT_NONE, MAP_SHARED | MAP_FIXED, file, 0);
    close(file);
    if (here == MAP_FAILED || space == MAP_FAILED || there == MAP_FAILED) {
        broken("mmap");
    }
    made->bytes = static_cast<uint8_t *>(here);
    made->there = at;
    memset(made->bytes, 0xA5, made->n_mapped);
    return made;
}

struct library : object {
    std::string text;
};

struct function : object {
    std::string name;
};

struct pipeline : object {
    std::string name;
};

struct command_buffer;

struct queue : object {
    std::deque<command_buffer *> committed; // each with a reference of the queue's
    uint64_t                     n_open = 0;
};

struct encoder;

struct command_buffer : object {
    queue *                            of     = nullptr;
    uint64_t                           status = MTL::CommandBufferStatusNotEnqueued;
    bool                               fails  = false;
    error *                            why    = nullptr;
    encoder *                          open   = nullptr; // not ended yet
    std::vector<std::function<void()>> commands;
    std::vector<object *>              held; // what commands name, until they are done

    void hold(object * one) {
        objc::retain(one);
        held.push_back(one);
    }
    void let_go() {
        commands.clear();
        for (object * const one : held) {
            objc::release(one);
        }
        held.clear();
    }
    ~command_buffer() {
        if (status == MTL::CommandBufferStatusNotEnqueued) {
            of->n_open--;
        }
        let_go();
        if (why != nullptr) {
            objc::release(why);
        }
        objc::release(of);
    }
};

struct encoder : object {
    command_buffer * of       = nullptr;
    bool             is_ended = false;

    void check_open() const {
        if (is_ended || of->status != MTL::CommandBufferStatusNotEnqueued) {
            broken("a command is encoded after endEncoding or commit");
        }
    }
    ~encoder() {
        if (!is_ended) {
            broken("an encoder is released before endEncoding");
        }
        objc::release(of);
    }
};

struct compute_encoder : encoder {
    std::string                     function;
    std::map<uint64_t, std::string> bytes; // bound with setBytes, by index
    std::map<uint64_t, uint64_t>    threadgroup_bytes;
    std::map<buffer *, uint64_t>    told_of; // useResource, with its usage: no reference is kept
};

template <typename T> T * make_encoder(command_buffer * self, const char * class_name) {
    if (self->status != MTL::CommandBufferStatusNotEnqueued || self->open != nullptr) {
        broken("an encoder is begun while another is open, or after commit");
    }
    if (fails()) {
        return nullptr;
    }
    auto * const made = objc::make<T>(class_name);
    made->of          = self;
    objc::retain(self);
    self->open = made;
    objc::autorelease(made);
    return made;
}

void end_encoding(encoder * self, SEL) {
    self->check_open();
    self->is_ended = true;
    self->of->open = nullptr;
}

void check_range(const buffer * of, uint64_t offset, uint64_t n_bytes, const char * what) {
    if (offset > of->n_bytes || n_bytes > of->n_bytes - offset) {
        broken("%s: bytes %llu to %llu of a buffer of %llu", what, static_cast<unsigned long long>(offset),
               static_cast<unsigned long long>(offset + n_bytes), static_cast<unsigned long long>(of->n_bytes));
    }
    if (offset % 4 != 0 || n_bytes % 4 != 0 || n_bytes == 0) {
        broken("%s: on a Mac, offsets and sizes are multiples of 4", what);
    }
}

// a launch as it was encoded
void run_dispatch(const launch_state & launch, const std::map<buffer *, uint64_t> & told_of) {
    count.n_dispatches++;
    for (const auto & [one, usage] : told_of) {
        if (one->n_references <= 0) {
            broken("a buffer that %s was told of is gone before it ran", launch.function.c_str());
        }
        one->take_in();
        one->open((usage & MTL::ResourceUsageWrite) != 0 ? PROT_READ | PROT_WRITE : PROT_READ);
    }
    run_kernel(launch);
    for (const auto & [one, usage] : told_of) {
        one->open(PROT_NONE);
        one->give_back();
    }
}

void run_commands(command_buffer * self) {
    count.n_commands++;
    if (self->fails) {
        self->why    = make_error(now.command_error, failure_words);
        self->status = MTL::CommandBufferStatusError;
    } else {
        for (const auto & command : self->commands) {
            command();
        }
        self->status = MTL::CommandBufferStatusCompleted;
    }
    self->let_go();
}

// all that was committed before it, and it
void run_until(command_buffer * last) {
    queue * const of = last->of;
    while (!of->committed.empty() && last->status == MTL::CommandBufferStatusCommitted) {
        command_buffer * const one = of->committed.front();
        of->committed.pop_front();
        run_commands(one);
        objc::release(one);
    }
}

void commit(command_buffer * self, SEL) {
    const std::lock_guard<std::recursive_mutex> lock(device_mutex);
    if (self->status != MTL::CommandBufferStatusNotEnqueued || self->open != nullptr) {
        broken("a command buffer is committed twice, or with an open encoder");
    }
    self->status = MTL::CommandBufferStatusCommitted;
    self->fails  = fails(true);
    self->of->n_open--;
    objc::retain(self);
    self->of->committed.push_back(self);
    if (now.runs_at_once) {
        run_until(self);
    }
}

void wait_until_completed(command_buffer * self, SEL) {
    const std::lock_guard<std::recursive_mutex> lock(device_mutex);
    if (self->status == MTL::CommandBufferStatusNotEnqueued) {
        broken("a command buffer is waited for that was never committed");
    }
    run_until(self);
}

command_buffer * make_command_buffer(queue * self, SEL) {
    const std::lock_guard<std::recursive_mutex> lock(device_mutex);
    if (self->n_open >= 64) {
        broken("64 command buffers are open: the next one would be waited for without an end");
    }
    if (fails()) {
        return nullptr;
    }
    if (self->n_open + self->committed.size() >= 64) {
        run_until(self->committed.front()); // Metal waits here
    }
    auto * const made = objc::make<command_buffer>("MTLCommandBuffer");
    made->of          = self;
    objc::retain(self);
    self->n_open++;
    objc::autorelease(made);
    return made;
}

void define_foundation() {
    objc::class_method(
        "NSString",
        "stringWithCString:encoding:", +[](Class, SEL, const char * text, NS::StringEncoding encoding) -> object * {
            if (encoding != NS::UTF8StringEncoding) {
                broken("a string that is not UTF-8");
            }
            return fails() ? nullptr : objc::autorelease(make_string(text));
        });
    objc::method("NSString", "UTF8String", +[](string * self, SEL) -> const char * { return self->text.c_str(); });
    objc::method("NSError", "code", +[](error * self, SEL) { return self->code; });
    objc::method(
        "NSError", "localizedDescription", +[](error * self, SEL) -> object * {
            objc::retain(self->words);
            return objc::autorelease(self->words);
        });
}

void define_library() {
    objc::class_method(
        "MTLCompileOptions", "alloc",
        +[](Class, SEL) -> object * { return fails() ? nullptr : objc::make<options>("MTLCompileOptions"); });
    objc::method("MTLCompileOptions", "init", +[](options * self, SEL) { return self; });
    objc::method(
        "MTLCompileOptions",
        "setFastMathEnabled:", +[](options * self, SEL, bool is_fast) { self->is_fast = is_fast; });
    objc::method(
        "MTLLibrary", "newFunctionWithName:", +[](library * self, SEL, string * name) -> object * {
            if (fails() || !has_function(self->text, name->text)) {
                return nullptr;
            }
            auto * const made = objc::make<function>("MTLFunction");
            made->name        = name->text;
            return made;
        });
    objc::method(
        "MTLComputePipelineState", "threadExecutionWidth", +[](pipeline *, SEL) -> uintptr_t { return now.simdgroup; });
    objc::method(
        "MTLComputePipelineState", "maxTotalThreadsPerThreadgroup",
        +[](pipeline *, SEL) -> uintptr_t { return now.n_threads; });
}

void define_device() {
    objc::method(
        "MTLDevice", "supportsFamily:", +[](device *, SEL, intptr_t family) {
            return family == MTL::GPUFamilyMetal3 && now.has_metal3;
        });
    objc::method("MTLDevice", "hasUnifiedMemory", +[](device *, SEL) { return now.is_unified; });
    objc::method(
        "MTLDevice", "maxThreadgroupMemoryLength", +[](device *, SEL) -> uintptr_t { return now.threadgroup_bytes; });
    objc::method(
        "MTLDevice", "newBufferWithLength:options:", +[](device *, SEL, uintptr_t n_bytes, uintptr_t mode) -> object * {
            if (n_bytes == 0) {
                broken("an empty buffer");
            }
            return fails() ? nullptr : make_buffer(n_bytes, mode);
        });
    objc::method(
        "MTLDevice", "newBufferWithBytes:length:options:",
        +[](device *, SEL, const void * from, uintptr_t n_bytes, uintptr_t mode) -> object * {
            if (n_bytes == 0 || mode != MTL::ResourceStorageModeShared) {
                broken("a buffer that is empty, or whose bytes the host cannot write");
            }
            if (fails()) {
                return nullptr;
            }
            auto * const made = make_buffer(n_bytes, mode);
            memcpy(made->bytes, from, n_bytes);
            return made;
        });
    objc::method(
        "MTLDevice", "newBufferWithBytesNoCopy:length:options:deallocator:",
        +[](device *, SEL, void * memory, uintptr_t n_bytes, uintptr_t mode, const void * deallocator) -> object * {
            if (reinterpret_cast<uintptr_t>(memory) % page_size() != 0 || n_bytes % page_size() != 0 || n_bytes == 0 ||
                mode != MTL::ResourceStorageModeShared || deallocator != nullptr) {
                broken("memory without a copy that is not of whole pages");
            }
            if (fails()) {
                return nullptr;
            }
            count.n_borrowed++;
            auto * const made = make_buffer(n_bytes, mode);
            made->borrowed    = memory;
            return made;
        });
    objc::method(
        "MTLDevice", "newLibraryWithSource:options:error:",
        +[](device *, SEL, string * text, options * with, NS::Error ** error) -> object * {
            if (!with->keeps_bits()) {
                broken("kernels are compiled with fast math");
            }
            if (fails()) {
                report(error);
                return nullptr;
            }
            count.n_libraries++;
            auto * const made = objc::make<library>("MTLLibrary");
            made->text        = text->text;
            return made;
        });
    objc::method(
        "MTLDevice", "newComputePipelineStateWithFunction:error:",
        +[](device *, SEL, function * of, NS::Error ** error) -> object * {
            if (fails()) {
                report(error);
                return nullptr;
            }
            count.n_pipelines++;
            auto * const made = objc::make<pipeline>("MTLComputePipelineState");
            made->name        = of->name;
            return made;
        });
    objc::method("MTLBuffer", "length", +[](buffer * self, SEL) -> uintptr_t { return self->n_bytes; });
    objc::method(
        "MTLBuffer", "gpuAddress",
        +[](buffer * self, SEL) -> uint64_t { return reinterpret_cast<uint64_t>(self->there); });
    objc::method(
        "MTLBuffer", "storageMode", +[](buffer * self, SEL) -> uintptr_t {
            return self->mode == MTL::ResourceStorageModePrivate ? MTL::StorageModePrivate : MTL::StorageModeShared;
        });
    objc::method(
        "MTLBuffer", "contents", +[](buffer * self, SEL) -> void * {
            if (self->mode == MTL::ResourceStorageModePrivate) {
                return nullptr;
            }
            return self->borrowed != nullptr ? self->borrowed : self->bytes;
        });
}

void define_commands() {
    objc::method("MTLCommandQueue", "commandBuffer", make_command_buffer);
    objc::method("MTLCommandBuffer", "commit", commit);
    objc::method("MTLCommandBuffer", "waitUntilCompleted", wait_until_completed);
    objc::method("MTLCommandBuffer", "status", +[](command_buffer * self, SEL) -> uintptr_t { return self->status; });
    objc::method("MTLCommandBuffer", "error", +[](command_buffer * self, SEL) -> object * { return self->why; });
    objc::method(
        "MTLCommandBuffer", "blitCommandEncoder",
        +[](command_buffer * self, SEL) -> object * { return make_encoder<encoder>(self, "MTLBlitCommandEncoder"); });
    objc::method(
        "MTLCommandBuffer", "computeCommandEncoder", +[](command_buffer * self, SEL) -> object * {
            return make_encoder<compute_encoder>(self, "MTLComputeCommandEncoder");
        });
    objc::method("MTLBlitCommandEncoder", "endEncoding", end_encoding);
    objc::method(
        "MTLBlitCommandEncoder", "copyFromBuffer:sourceOffset:toBuffer:destinationOffset:size:",
        +[](encoder * self, SEL, buffer * from, uintptr_t from_offset, buffer * to, uintptr_t to_offset,
            uintptr_t n_bytes) {
            self->check_open();
            check_range(from, from_offset, n_bytes, "a copy's source");
            check_range(to, to_offset, n_bytes, "a copy's destination");
            self->of->hold(from);
            self->of->hold(to);
            self->of->commands.emplace_back([=] {
                count.n_copies++;
                from->take_in();
                to->take_in();
                memcpy(to->bytes + to_offset, from->bytes + from_offset, n_bytes);
                to->give_back();
            });
        });
    objc::method(
        "MTLBlitCommandEncoder",
        "fillBuffer:range:value:", +[](encoder * self, SEL, buffer * to, NS::Range range, uint8_t value) {
            self->check_open();
            check_range(to, range.location, range.length, "a fill");
            self->of->hold(to);
            self->of->commands.emplace_back([=] {
                to->take_in();
                memset(to->bytes + range.location, value, range.length);
                to->give_back();
            });
        });
}

void define_launches() {
    objc::method("MTLComputeCommandEncoder", "endEncoding", end_encoding);
    objc::method(
        "MTLComputeCommandEncoder", "setComputePipelineState:", +[](compute_encoder * self, SEL, pipeline * state) {
            self->check_open();
            self->of->hold(state);
            self->function = state->name;
        });
    objc::method(
        "MTLComputeCommandEncoder", "setBytes:length:atIndex:",
        +[](compute_encoder * self, SEL, const void * bytes, uintptr_t n_bytes, uintptr_t index) {
            self->check_open();
            if (n_bytes == 0 || n_bytes > 4096 || index > 30) {
                broken("setBytes of %lu bytes at index %lu", n_bytes, index);
            }
            self->bytes[index].assign(static_cast<const char *>(bytes), n_bytes);
        });
    objc::method(
        "MTLComputeCommandEncoder",
        "setThreadgroupMemoryLength:atIndex:", +[](compute_encoder * self, SEL, uintptr_t n_bytes, uintptr_t index) {
            self->check_open();
            if (n_bytes % 16 != 0 || n_bytes > now.threadgroup_bytes || index > 30) {
                broken("threadgroup memory of %lu bytes at index %lu", n_bytes, index);
            }
            self->threadgroup_bytes[index] = n_bytes;
        });
    objc::method(
        "MTLComputeCommandEncoder", "useResources:count:usage:",
        +[](compute_encoder * self, SEL, buffer * const * resources, uintptr_t n, uintptr_t usage) {
            self->check_open();
            for (uintptr_t i = 0; i < n; i++) {
                self->told_of[resources[i]] |= usage;
            }
        });
    objc::method(
        "MTLComputeCommandEncoder", "dispatchThreadgroups:threadsPerThreadgroup:",
        +[](compute_encoder * self, SEL, MTL::Size n_threadgroups, MTL::Size n_threads) {
            self->check_open();
            if (self->function.empty()) {
                broken("a launch without a pipeline");
            }
            if (n_threadgroups.width == 0 || n_threads.width == 0 || n_threads.width > now.n_threads ||
                n_threadgroups.height * n_threadgroups.depth * n_threads.height * n_threads.depth != 1) {
                broken("a launch of %lu threadgroups of %lu threads", n_threadgroups.width, n_threads.width);
            }
            const auto bytes = self->bytes.find(0);
            if (bytes == self->bytes.end()) {
                broken("%s is launched with nothing at buffer index 0", self->function.c_str());
            }
            count.n_named          = self->told_of.size();
            // as it is bound now
            const auto   arguments = std::make_shared<std::string>(bytes->second);
            launch_state launch{ self->function,
                                 arguments->data(),
                                 arguments->size(),
                                 static_cast<uint32_t>(n_threads.width),
                                 static_cast<uint32_t>(n_threadgroups.width),
                                 static_cast<uint32_t>(self->threadgroup_bytes[0]) };
            self->of->commands.emplace_back(
                [arguments, launch, told_of = self->told_of] { run_dispatch(launch, told_of); });
        });
}

template <typename T> T * behind(void * handle) {
    return static_cast<T *>(handle);
}

} // namespace

void set(const settings & with) {
    static const bool is_defined = [] {
        define_foundation();
        define_library();
        define_device();
        define_commands();
        define_launches();
        return true;
    }();
    static_cast<void>(is_defined);
    now   = with;
    count = {};
    if (with.has_math_mode) {
        objc::method(
            "MTLCompileOptions", "setMathMode:", +[](options * self, SEL, intptr_t mode) { self->math_mode = mode; });
        objc::method(
            "MTLCompileOptions", "setMathFloatingPointFunctions:", +[](options * self, SEL, intptr_t functions) {
                self->functions = functions;
            });
    } else {
        objc::remove_method("MTLCompileOptions", "setMathMode:");
        objc::remove_method("MTLCompileOptions", "setMathFloatingPointFunctions:");
    }
}

const counters & counted() {
    return count;
}

MTL::Device * make_device() {
    return reinterpret_cast<MTL::Device *>(objc::make<device>("MTLDevice"));
}

MTL::CommandQueue * make_queue(MTL::Device *) {
    return reinterpret_cast<MTL::CommandQueue *>(objc::make<queue>("MTLCommandQueue"));
}

void fill_later(MTL::CommandQueue * on, MTL::Buffer * what, uint64_t offset, uint64_t n_bytes, uint8_t value) {
    const kernels::autorelease_scope scope;
    MTL::CommandBuffer * const       commands = on->commandBuffer();
    auto * const                     blit     = commands->blitCommandEncoder();
    blit->fillBuffer(what, NS::Range(offset, n_bytes), value);
    blit->endEncoding();
    commands->commit();
}

std::string bytes_of(MTL::Buffer * of, uint64_t offset, uint64_t n_bytes) {
    const auto * const one = behind<buffer>(of);
    return std::string(reinterpret_cast<const char *>(one->bytes) + offset, n_bytes);
}

void run_all(MTL::CommandQueue * on) {
    const std::lock_guard<std::recursive_mutex> lock(device_mutex);
    auto * const                                of = behind<queue>(on);
    if (!of->committed.empty()) {
        run_until(of->committed.back());
    }
}

} // namespace fake_metal
