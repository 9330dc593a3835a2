# libcachegen: the codec, a static library that needs no other (xxhash is a header), position-independent so that a
# module can hold it.

include(${CMAKE_CURRENT_SOURCE_DIR}/native/codec/sources.cmake)

find_package(Threads REQUIRED)

set(codec_dir ${CMAKE_CURRENT_SOURCE_DIR}/native/codec)

# xxhash.h comes with llama.cpp
set(LLAMA_CACHEGEN_XXHASH_DIR ${LLAMA_CACHEGEN_LLAMA_DIR}/vendor/hash/xxhash CACHE PATH "folder of xxhash.h")

function(cachegen_library name has_encoder)
    set(common ${CACHEGEN_DECODER_SOURCES})
    set(avx2 ${CACHEGEN_DECODER_SOURCES_AVX2})
    set(avx512 ${CACHEGEN_DECODER_SOURCES_AVX512})
    if (has_encoder)
        list(APPEND common ${CACHEGEN_ENCODER_SOURCES})
        list(APPEND avx2 ${CACHEGEN_ENCODER_SOURCES_AVX2})
        list(APPEND avx512 ${CACHEGEN_ENCODER_SOURCES_AVX512})
    endif()
    list(TRANSFORM common PREPEND ${codec_dir}/)
    list(TRANSFORM avx2 PREPEND ${codec_dir}/)
    list(TRANSFORM avx512 PREPEND ${codec_dir}/)

    add_library(${name} STATIC ${common})
    if (CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        set(avx2_options "-mavx2;-mf16c;-mbmi2;-mpopcnt")
        set(avx512_options "${avx2_options};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vbmi")
        target_sources(${name} PRIVATE ${avx2} ${avx512})
        set_source_files_properties(${avx2} PROPERTIES COMPILE_OPTIONS "${avx2_options}")
        set_source_files_properties(${avx512} PROPERTIES COMPILE_OPTIONS "${avx512_options}")
        target_compile_definitions(${name} PRIVATE CACHEGEN_AVX2 CACHEGEN_AVX512)
    endif()
    target_include_directories(${name} PUBLIC ${codec_dir} PRIVATE ${LLAMA_CACHEGEN_XXHASH_DIR})
    target_compile_features(${name} PUBLIC cxx_std_17)
    target_link_libraries(${name} PUBLIC Threads::Threads)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
    if (CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        # bits matter: every operation is rounded on its own
        target_compile_options(${name} PRIVATE -ffp-contract=off -Wall -Wextra -Wno-missing-field-initializers)
        if (NOT LLAMA_CACHEGEN_SANITIZE)
            target_compile_options(${name} PRIVATE -O3)
        endif()
    endif()
endfunction()

cachegen_library(cachegen ${LLAMA_CACHEGEN_CODEC_ENCODER})
