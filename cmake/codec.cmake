# libcachegen, before llama.cpp's targets, which hold it too.

set(LLAMA_CACHEGEN_LLAMA_DIR "${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp" CACHE PATH "patched llama.cpp source tree")

# xxhash.h comes with llama.cpp
set(CACHEGEN_XXHASH_DIR ${LLAMA_CACHEGEN_LLAMA_DIR}/vendor/hash/xxhash CACHE PATH "folder of xxhash.h")
set(CACHEGEN_ENCODER ${LLAMA_CACHEGEN_CODEC_ENCODER} CACHE BOOL "give libcachegen its encoders" FORCE)
include(native/codec/library.cmake)
