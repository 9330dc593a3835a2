# The HIP decoder and encoder: CUDA's device and launches on HIP's runtime, and kernels by HIP's compiler. For the
# languages CXX and HIP.

include(${CMAKE_CURRENT_LIST_DIR}/../sources.cmake)

find_package(hip REQUIRED)

add_library(cachegen-hip STATIC
    ${CACHEGEN_KERNEL_HOST_SOURCES}
    ${CACHEGEN_KERNEL_DIR}/cuda/cuda_device.cpp
    ${CACHEGEN_KERNEL_DIR}/cuda/pinned_memory.cpp
    ${CACHEGEN_KERNEL_DIR}/hip/decode.hip
    ${CACHEGEN_KERNEL_DIR}/hip/encode.hip
    ${CACHEGEN_KERNEL_DIR}/hip/legacy.hip
)
target_include_directories(cachegen-hip PUBLIC ${CACHEGEN_KERNEL_DIR})
target_compile_definitions(cachegen-hip PUBLIC CACHEGEN_HIP)
target_link_libraries(cachegen-hip PUBLIC cachegen hip::host)
target_compile_features(cachegen-hip PUBLIC cxx_std_17)
set_target_properties(cachegen-hip PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
# HIP's functions are [[nodiscard]], CUDA's are not
target_compile_options(cachegen-hip PRIVATE -Wno-unused-result)
# bits matter: products and sums are rounded on their own. KC_UNROLL asks for loops that need not be unrolled too.
target_compile_options(cachegen-hip PRIVATE $<$<COMPILE_LANGUAGE:HIP>:-ffp-contract=off -Wno-pass-failed>)
