# The patched llama.cpp: materialise it, name its stamp, and add its targets.

set(LLAMA_CACHEGEN_LLAMA_DIR "${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp" CACHE PATH "patched llama.cpp source tree")

set(llama_lock "${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.lock")
set(patch_order "${CMAKE_CURRENT_SOURCE_DIR}/patches/.order")
file(GLOB patch_files CONFIGURE_DEPENDS "${CMAKE_CURRENT_SOURCE_DIR}/patches/*.patch")
set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${llama_lock} ${patch_order} ${patch_files})

# both commands are quick when there is nothing to do
if (LLAMA_CACHEGEN_LLAMA_DIR STREQUAL "${CMAKE_CURRENT_SOURCE_DIR}/vendor/llama.cpp")
    foreach (step "vendor" "patches;import")
        list(GET step 0 tool)
        set(arguments ${step})
        list(REMOVE_AT arguments 0)
        execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/${tool} ${arguments}
                        WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} RESULT_VARIABLE status)
        if (NOT status EQUAL 0)
            message(FATAL_ERROR "scripts/${tool} failed (see above); llama.cpp's sources cannot be prepared")
        endif()
    endforeach()
endif()

file(READ ${llama_lock} llama_lock_json)
string(JSON llama_commit GET "${llama_lock_json}" llama_cpp commit)

# The stack digest, as `scripts/patches digest` defines it: SHA-256 over one line "<sha256 of the file>  <name>" a patch.
set(digest_input "")
file(STRINGS ${patch_order} patch_names REGEX "^[^#].*[.]patch$")
foreach (name IN LISTS patch_names)
    file(SHA256 "${CMAKE_CURRENT_SOURCE_DIR}/patches/${name}" patch_sha256)
    string(APPEND digest_input "${patch_sha256}  ${name}\n")
endforeach()
string(SHA256 patch_digest "${digest_input}")
message(STATUS "llama.cpp ${llama_commit}, patch stack ${patch_digest}")

set(BUILD_SHARED_LIBS ON)
set(LLAMA_BUILD_COMMON OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_TESTS OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_TOOLS OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_EXAMPLES OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_SERVER OFF CACHE BOOL "" FORCE)
set(LLAMA_BUILD_APP OFF CACHE BOOL "" FORCE)
set(GGML_CCACHE OFF CACHE BOOL "" FORCE) # the compiler launcher is set for the whole project
set(GGML_CACHEGEN ON CACHE BOOL "" FORCE)
set(GGML_CACHEGEN_ROOT "${CMAKE_CURRENT_SOURCE_DIR}/native" CACHE PATH "" FORCE)
set(GGML_CACHEGEN_PATCH_DIGEST "${patch_digest}" CACHE STRING "" FORCE)
set(GGML_CACHEGEN_LLAMA_COMMIT "${llama_commit}" CACHE STRING "" FORCE)

set(llama_targets llama ggml ggml-base ggml-cpu)
if (LLAMA_CACHEGEN_CUDA)
    set(GGML_CUDA ON CACHE BOOL "" FORCE)
    list(APPEND llama_targets ggml-cuda)
endif()
if (LLAMA_CACHEGEN_HIP)
    set(GGML_HIP ON CACHE BOOL "" FORCE)
    list(APPEND llama_targets ggml-hip)
endif()
if (LLAMA_CACHEGEN_METAL AND NOT APPLE)
    message(FATAL_ERROR "LLAMA_CACHEGEN_METAL needs macOS; tests/metal checks the codec's Metal code on other systems")
endif()
if (LLAMA_CACHEGEN_METAL)
    execute_process(COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/metal-cpp
                    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR} RESULT_VARIABLE status)
    if (NOT status EQUAL 0)
        message(FATAL_ERROR "scripts/metal-cpp failed (see above); Metal's headers cannot be prepared")
    endif()
    set(GGML_METAL_EMBED_LIBRARY ON CACHE BOOL "" FORCE)
    list(APPEND llama_targets ggml-metal)
endif()
if (APPLE)
    # llama.cpp's defaults there; a Metal backend without the codec would hold caches that cannot be restored
    set(GGML_METAL ${LLAMA_CACHEGEN_METAL} CACHE BOOL "" FORCE)
    set(GGML_BLAS OFF CACHE BOOL "" FORCE)
endif()

set(CMAKE_BUILD_WITH_INSTALL_RPATH ON)
if (APPLE)
    set(CMAKE_INSTALL_RPATH "@loader_path")
else()
    set(CMAKE_INSTALL_RPATH "$ORIGIN")
endif()

add_subdirectory(${LLAMA_CACHEGEN_LLAMA_DIR} ${CMAKE_BINARY_DIR}/llama.cpp EXCLUDE_FROM_ALL)

# A wheel cannot hold symbolic links, and versioned names would come as three copies of each library.
foreach (target IN LISTS llama_targets)
    set_property(TARGET ${target} PROPERTY VERSION)
    set_property(TARGET ${target} PROPERTY SOVERSION)
endforeach()
