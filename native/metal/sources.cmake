# Included by the patched llama.cpp's ggml/src/ggml-metal/CMakeLists.txt: what the Metal backend gets from this tree. The
# device and the kernels' text are a library of their own.

include(${GGML_CACHEGEN_ROOT}/codec/library.cmake)
include(${GGML_CACHEGEN_ROOT}/kernels/metal/library.cmake)

target_sources(ggml-metal PRIVATE ${GGML_CACHEGEN_ROOT}/metal/kv-codec-metal.cpp)
target_include_directories(ggml-metal PRIVATE ${GGML_CACHEGEN_ROOT}/metal ${GGML_CACHEGEN_ROOT}/procs
                           ${CMAKE_CURRENT_SOURCE_DIR})
target_link_libraries(ggml-metal PRIVATE cachegen-metal)
cachegen_link_hidden(ggml-metal)
