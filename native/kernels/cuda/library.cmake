# The CUDA decoder and encoder: kernels, and the device that launches them. For the languages CXX and CUDA.

include(${CMAKE_CURRENT_LIST_DIR}/../sources.cmake)

find_package(CUDAToolkit REQUIRED)

add_library(cachegen-cuda STATIC
    ${CACHEGEN_KERNEL_HOST_SOURCES}
    ${CACHEGEN_KERNEL_DIR}/cuda/cuda_device.cpp
    ${CACHEGEN_KERNEL_DIR}/cuda/decode.cu
    ${CACHEGEN_KERNEL_DIR}/cuda/encode.cu
    ${CACHEGEN_KERNEL_DIR}/cuda/legacy.cu
    ${CACHEGEN_KERNEL_DIR}/cuda/pinned_memory.cpp
)
target_include_directories(cachegen-cuda PUBLIC ${CACHEGEN_KERNEL_DIR})
target_link_libraries(cachegen-cuda PUBLIC cachegen CUDA::cudart)
target_compile_features(cachegen-cuda PUBLIC cxx_std_17)
set_target_properties(cachegen-cuda PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
# bits matter: products and sums are rounded on their own
target_compile_options(cachegen-cuda PRIVATE $<$<COMPILE_LANGUAGE:CUDA>:-fmad=false -Xptxas=-v>)
