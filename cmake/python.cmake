# The cffi module (API mode, abi3) and what the wheel installs.

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter Development.SABIModule)

set(kv_page_header ${CMAKE_CURRENT_SOURCE_DIR}/native/llama/llama-kv-page.h)
set(cachegen_header ${CMAKE_CURRENT_SOURCE_DIR}/native/llama/llama-cachegen.h)
set(cffi_source ${CMAKE_BINARY_DIR}/cffi/_native.c)

add_custom_command(
    OUTPUT ${cffi_source}
    COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/cffi_source.py
            --header ${kv_page_header} --header ${cachegen_header} --module llama_cachegen._native --stamp --callbacks
            --output ${cffi_source}
    DEPENDS ${kv_page_header} ${cachegen_header} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/cffi_source.py
    COMMENT "Generating the cffi module from llama-kv-page.h and llama-cachegen.h"
    VERBATIM)

Python_add_library(_native MODULE USE_SABI 3.10 WITH_SOABI ${cffi_source})
target_include_directories(_native PRIVATE ${CMAKE_CURRENT_SOURCE_DIR}/native/llama)
target_compile_definitions(_native PRIVATE
    LLAMA_CACHEGEN_PATCH_DIGEST="${patch_digest}" LLAMA_CACHEGEN_LLAMA_COMMIT="${llama_commit}")
target_link_libraries(_native PRIVATE llama)
if (APPLE)
    set_target_properties(_native PROPERTIES INSTALL_RPATH "@loader_path/lib")
else()
    set_target_properties(_native PROPERTIES INSTALL_RPATH "$ORIGIN/lib")
endif()

# The codec has its own module: it needs no libllama, and what only reads archives can do without one.
set(codec_header ${CMAKE_CURRENT_SOURCE_DIR}/native/codec/cachegen.h)
set(codec_cffi_source ${CMAKE_BINARY_DIR}/cffi/_codec.c)

add_custom_command(
    OUTPUT ${codec_cffi_source}
    COMMAND ${Python_EXECUTABLE} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/cffi_source.py
            --header ${codec_header} --module llama_cachegen._codec --output ${codec_cffi_source}
    DEPENDS ${codec_header} ${CMAKE_CURRENT_SOURCE_DIR}/scripts/cffi_source.py
    COMMENT "Generating the cffi module from cachegen.h"
    VERBATIM)

Python_add_library(_codec MODULE USE_SABI 3.10 WITH_SOABI ${codec_cffi_source})
cachegen_link_hidden(_codec)

install(TARGETS _native _codec LIBRARY DESTINATION llama_cachegen COMPONENT python)
install(TARGETS ${llama_targets}
    LIBRARY DESTINATION llama_cachegen/lib COMPONENT python
    RUNTIME DESTINATION llama_cachegen/lib COMPONENT python)
install(FILES ${kv_page_header} ${cachegen_header} ${codec_header} DESTINATION llama_cachegen/include COMPONENT python)
