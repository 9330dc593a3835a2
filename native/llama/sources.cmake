# Included by the patched llama.cpp's src/CMakeLists.txt: what the llama target gets from this tree.

set(LLAMA_CACHEGEN_SOURCES
    ${GGML_CACHEGEN_ROOT}/llama/archive-writer.cpp
    ${GGML_CACHEGEN_ROOT}/llama/host-staging.cpp
    ${GGML_CACHEGEN_ROOT}/llama/llama-cachegen-stamp.cpp
    ${GGML_CACHEGEN_ROOT}/llama/llama-cachegen.cpp
    ${GGML_CACHEGEN_ROOT}/llama/llama-kv-page.cpp
    ${GGML_CACHEGEN_ROOT}/llama/page-cache.cpp
    ${GGML_CACHEGEN_ROOT}/llama/page-copy.cpp
    ${GGML_CACHEGEN_ROOT}/llama/page-digest.cpp
    ${GGML_CACHEGEN_ROOT}/llama/page-status.cpp
)

target_sources(llama PRIVATE ${LLAMA_CACHEGEN_SOURCES})
target_include_directories(llama PRIVATE ${GGML_CACHEGEN_ROOT}/llama ${GGML_CACHEGEN_ROOT}/procs ${PROJECT_SOURCE_DIR}/vendor/hash/xxhash)

set_source_files_properties(${LLAMA_CACHEGEN_SOURCES} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)

set_source_files_properties(${GGML_CACHEGEN_ROOT}/llama/llama-cachegen-stamp.cpp PROPERTIES COMPILE_DEFINITIONS
    "LLAMA_CACHEGEN_PATCH_DIGEST=\"${GGML_CACHEGEN_PATCH_DIGEST}\";LLAMA_CACHEGEN_LLAMA_COMMIT=\"${GGML_CACHEGEN_LLAMA_COMMIT}\"")

find_package(Threads REQUIRED)
target_link_libraries(llama PRIVATE Threads::Threads)

include(${GGML_CACHEGEN_ROOT}/codec/library.cmake)
cachegen_link_hidden(llama)
