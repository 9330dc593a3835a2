# Included by the patched llama.cpp's ggml/src/ggml-cpu/CMakeLists.txt: what the CPU backend gets from this tree. The
# codec chooses its instruction set at run time, so every variant of the backend holds the same code.

include(${GGML_CACHEGEN_ROOT}/codec/library.cmake)

target_sources(${GGML_CPU_NAME} PRIVATE ${GGML_CACHEGEN_ROOT}/cpu/kv-codec-cpu.cpp)
target_include_directories(${GGML_CPU_NAME} PRIVATE ${GGML_CACHEGEN_ROOT}/cpu ${GGML_CACHEGEN_ROOT}/procs)
cachegen_link_hidden(${GGML_CPU_NAME})
