#include "metal_library.h"

#include "metal_errors.h"
#include "metal_sources.h"
#include "status.h"

#include <list>
#include <objc/runtime.h>

namespace kernels {

using namespace cachegen;

namespace {

std::string text_of(metal_source source) {
    switch (source) {
        case metal_source::decode: return joined(metal_text_decode);
        case metal_source::legacy: return joined(metal_text_legacy);
        default: return joined(metal_text_encode);
    }
}

bool has_setter(MTL::CompileOptions * options, const char * name) {
    return class_respondsToSelector(object_getClass(reinterpret_cast<id>(options)), sel_registerName(name));
}

// What is stored has to be equal bit by bit to what the CPU stores: no fast math. Its name changed with macOS 15.
void keep_bits(MTL::CompileOptions * options) {
    if (has_setter(options, "setMathMode:")) {
        options->setMathMode(MTL::MathModeSafe);
        options->setMathFloatingPointFunctions(MTL::MathFloatingPointFunctionsPrecise);
    } else {
        options->setFastMathEnabled(false);
    }
}

std::mutex               libraries_mutex;
std::list<metal_library> libraries;

} // namespace

MTL::Library * metal_library::library(metal_source source, uint32_t store) {
    if (store == n_store_kinds) { // in the library of every store
        const auto any = libraries_.lower_bound({ source, 0 });
        store          = any != libraries_.end() && any->first.first == source ? any->first.second : store_f16;
    }
    NS::SharedPtr<MTL::Library> & library = libraries_[{ source, store }];
    if (library.get() == nullptr) {
        // the kernels of one store: a launch needs few of them, and compiling takes a while
        const std::string text    = "#define KC_ONLY_STORE " + std::to_string(store) + "\n" + text_of(source);
        const auto        options = owned(MTL::CompileOptions::alloc()->init(), "options of Metal's compiler");
        keep_bits(options.get());
        const NS::String * const string = NS::String::string(text.c_str(), NS::UTF8StringEncoding);
        if (string == nullptr) {
            fail_without_memory("the text of the kernels");
        }
        NS::Error *          error = nullptr;
        MTL::Library * const made  = device_->newLibrary(string, options.get(), &error);
        if (made == nullptr) { // an error beside a library is a warning
            fail_with("compiling the kernels", error);
        }
        library = NS::TransferPtr(made);
    }
    return library.get();
}

MTL::ComputePipelineState * metal_library::pipeline(metal_source source, uint32_t store, const std::string & kernel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const auto                        found = pipelines_.find(kernel);
    if (found != pipelines_.end()) {
        return found->second.get();
    }
    const NS::String * const name = NS::String::string(kernel.c_str(), NS::UTF8StringEncoding);
    if (name == nullptr) {
        fail_without_memory("a kernel's name");
    }
    const auto function = NS::TransferPtr(library(source, store)->newFunction(name));
    if (function.get() == nullptr) {
        fail(CACHEGEN_ERR_INTERNAL, "Metal: the kernels have no %s", kernel.c_str());
    }
    NS::Error * error    = nullptr;
    auto        pipeline = NS::TransferPtr(device_->newComputePipelineState(function.get(), &error));
    if (pipeline.get() == nullptr) {
        fail_with(kernel.c_str(), error);
    }
    if (pipeline->threadExecutionWidth() != 32) {
        fail(CACHEGEN_ERR_UNSUPPORTED, "Metal: %s runs in simdgroups of %llu, the codec needs 32", kernel.c_str(),
             static_cast<unsigned long long>(pipeline->threadExecutionWidth()));
    }
    return pipelines_.emplace(kernel, std::move(pipeline)).first->second.get();
}

metal_library & library_of(MTL::Device * device) {
    const std::lock_guard<std::mutex> lock(libraries_mutex);
    for (auto & one : libraries) {
        if (one.device() == device) {
            return one;
        }
    }
    return libraries.emplace_back(device);
}

void release_metal_libraries() {
    const std::lock_guard<std::mutex> lock(libraries_mutex);
    libraries.clear();
}

bool is_metal_device_supported(MTL::Device * device) {
    return device != nullptr && device->supportsFamily(MTL::GPUFamilyMetal3);
}

} // namespace kernels
