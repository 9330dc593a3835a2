# Included by the patched llama.cpp's ggml/src/ggml-cuda/CMakeLists.txt: what the CUDA backend gets from this tree. The
# kernels are a library of their own, so that a changed kernel compiles nothing else.

include(${GGML_CACHEGEN_ROOT}/codec/library.cmake)
include(${GGML_CACHEGEN_ROOT}/kernels/cuda/library.cmake)

target_sources(ggml-cuda PRIVATE ${GGML_CACHEGEN_ROOT}/cuda/kv-codec-cuda.cu)
target_include_directories(ggml-cuda PRIVATE ${GGML_CACHEGEN_ROOT}/cuda ${GGML_CACHEGEN_ROOT}/procs
                           ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(ggml-cuda PRIVATE cachegen-cuda)
cachegen_link_hidden(ggml-cuda)
