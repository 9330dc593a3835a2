# Included by the patched llama.cpp's ggml/src/ggml-hip/CMakeLists.txt: what the HIP backend gets from this tree. The procs
# are the CUDA backend's source, as the backend is; the kernels are a library of their own.

if (CXX_IS_HIPCC)
    message(FATAL_ERROR "The KV codec needs CMake's HIP language: set CMAKE_HIP_COMPILER instead of hipcc as CXX")
endif()

include(${GGML_CACHEGEN_ROOT}/codec/library.cmake)
include(${GGML_CACHEGEN_ROOT}/kernels/hip/library.cmake)

target_sources(ggml-hip PRIVATE ${GGML_CACHEGEN_ROOT}/cuda/kv-codec-cuda.cu)
set_source_files_properties(${GGML_CACHEGEN_ROOT}/cuda/kv-codec-cuda.cu PROPERTIES LANGUAGE HIP)
target_include_directories(ggml-hip PRIVATE ${GGML_CACHEGEN_ROOT}/cuda ${GGML_CACHEGEN_ROOT}/procs
                           ${CMAKE_CURRENT_SOURCE_DIR}/../ggml-cuda)
target_link_libraries(ggml-hip PRIVATE cachegen-hip)
cachegen_link_hidden(ggml-hip)
