// Apple's C++ interface to Metal (metal-cpp). Its headers send Objective-C messages and need no Objective-C compiler;
// metal_cpp.cpp holds their definitions.
#pragma once

#include <Foundation/Foundation.hpp>
#include <Metal/Metal.hpp>

namespace kernels {

// what Metal autoreleases while it lives is released at its end
class autorelease_scope {
  public:
    autorelease_scope() : pool_(NS::TransferPtr(NS::AutoreleasePool::alloc()->init())) {}
    autorelease_scope(const autorelease_scope &)             = delete;
    autorelease_scope & operator=(const autorelease_scope &) = delete;

  private:
    NS::SharedPtr<NS::AutoreleasePool> pool_;
};

} // namespace kernels
