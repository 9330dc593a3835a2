// The kernels of a Metal device: sources that the build has embedded, compiled at first use and kept.
#pragma once

#include "launch_shape.h"
#include "metal_cpp.h"

#include <map>
#include <mutex>
#include <string>
#include <utility>

namespace kernels {

class metal_library {
  public:
    explicit metal_library(MTL::Device * device) : device_(NS::RetainPtr(device)) {}
    metal_library(const metal_library &)             = delete;
    metal_library & operator=(const metal_library &) = delete;

    MTL::Device * device() const { return device_.get(); }

    // The pipeline of a kernel; it stays while this lives. On any thread. Throws cachegen::error: ERR_UNSUPPORTED for a
    // device whose simdgroups are not of 32, ERR_INTERNAL with the compiler's words.
    MTL::ComputePipelineState * pipeline(metal_source source, uint32_t store, const std::string & kernel);

  private:
    MTL::Library * library(metal_source source, uint32_t store);

    NS::SharedPtr<MTL::Device>                                               device_;
    std::mutex                                                               mutex_;
    std::map<std::pair<metal_source, uint32_t>, NS::SharedPtr<MTL::Library>> libraries_; // by source and store
    std::map<std::string, NS::SharedPtr<MTL::ComputePipelineState>>          pipelines_; // by kernel
};

// the one of a device, made at its first use; stays until release_metal_libraries(), when nothing may use it
metal_library & library_of(MTL::Device * device);
void            release_metal_libraries();

// is this a device that the kernels run on: Metal 3, which has addresses of buffers
bool is_metal_device_supported(MTL::Device * device);

} // namespace kernels
