# libcachegen: the codec, a static library that needs no other (xxhash is a header), position-independent so that a
# module or a shared library can hold it. Included by this project and by the patched llama.cpp.

include(${CMAKE_CURRENT_LIST_DIR}/sources.cmake)

find_package(Threads REQUIRED)

option(CACHEGEN_ENCODER "give libcachegen its encoders" ON)

set(CACHEGEN_SOURCE_DIR ${CMAKE_CURRENT_LIST_DIR} CACHE INTERNAL "")
set(CACHEGEN_XXHASH_DIR "${PROJECT_SOURCE_DIR}/vendor/hash/xxhash" CACHE PATH "folder of xxhash.h")

function(cachegen_library name has_encoder)
    set(common ${CACHEGEN_DECODER_SOURCES})
    set(avx2 ${CACHEGEN_DECODER_SOURCES_AVX2})
    set(avx512 ${CACHEGEN_DECODER_SOURCES_AVX512})
    set(neon ${CACHEGEN_DECODER_SOURCES_NEON})
    if (has_encoder)
        list(APPEND common ${CACHEGEN_ENCODER_SOURCES})
        list(APPEND avx2 ${CACHEGEN_ENCODER_SOURCES_AVX2})
        list(APPEND avx512 ${CACHEGEN_ENCODER_SOURCES_AVX512})
        list(APPEND neon ${CACHEGEN_ENCODER_SOURCES_NEON})
    endif()
    list(TRANSFORM common PREPEND ${CACHEGEN_SOURCE_DIR}/)
    list(TRANSFORM avx2 PREPEND ${CACHEGEN_SOURCE_DIR}/)
    list(TRANSFORM avx512 PREPEND ${CACHEGEN_SOURCE_DIR}/)
    list(TRANSFORM neon PREPEND ${CACHEGEN_SOURCE_DIR}/)

    add_library(${name} STATIC ${common})
    if (CMAKE_SYSTEM_PROCESSOR MATCHES "^(x86_64|AMD64|amd64)$" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        set(avx2_options "-mavx2;-mf16c;-mbmi2;-mpopcnt")
        set(avx512_options "${avx2_options};-mavx512f;-mavx512bw;-mavx512dq;-mavx512vl;-mavx512vbmi")
        target_sources(${name} PRIVATE ${avx2} ${avx512})
        set_source_files_properties(${avx2} PROPERTIES COMPILE_OPTIONS "${avx2_options}")
        set_source_files_properties(${avx512} PROPERTIES COMPILE_OPTIONS "${avx512_options}")
        target_compile_definitions(${name} PRIVATE CACHEGEN_AVX2 CACHEGEN_AVX512)
    elseif (CMAKE_SYSTEM_PROCESSOR MATCHES "^(aarch64|arm64|ARM64)$" AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        target_sources(${name} PRIVATE ${neon})
        target_compile_definitions(${name} PRIVATE CACHEGEN_NEON)
    endif()
    target_include_directories(${name} PUBLIC ${CACHEGEN_SOURCE_DIR} PRIVATE ${CACHEGEN_XXHASH_DIR})
    target_compile_features(${name} PUBLIC cxx_std_17)
    target_link_libraries(${name} PUBLIC Threads::Threads)
    set_target_properties(${name} PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
    if (CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
        # bits matter: every operation is rounded on its own
        target_compile_options(${name} PRIVATE -ffp-contract=off -Wall -Wextra -Wno-missing-field-initializers)
        # GCC's "undefined" leaves it out, clang's does not
        if ("${LLAMA_CACHEGEN_SANITIZE}" MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
            target_compile_options(${name} PRIVATE -fsanitize=float-cast-overflow)
        endif()
        if (NOT LLAMA_CACHEGEN_SANITIZE)
            target_compile_options(${name} PRIVATE -O3)
        endif()
    endif()
endfunction()

# link the codec into a shared library that does not show it: another module of the process may hold another version
function(cachegen_link_hidden target)
    target_link_libraries(${target} PRIVATE cachegen)
    if (CMAKE_SYSTEM_NAME STREQUAL "Linux")
        target_link_options(${target} PRIVATE "LINKER:--exclude-libs,libcachegen.a")
    endif()
endfunction()

if (NOT TARGET cachegen)
    cachegen_library(cachegen ${CACHEGEN_ENCODER})
endif()
