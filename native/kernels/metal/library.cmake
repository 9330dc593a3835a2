# The Metal decoder and encoder: the device on metal-cpp, and the kernels' text, which Metal compiles at run time.

include(${CMAKE_CURRENT_LIST_DIR}/../sources.cmake)

find_package(Python 3.10 REQUIRED COMPONENTS Interpreter)

set(CACHEGEN_METAL_CPP "${CACHEGEN_KERNEL_DIR}/../../vendor/metal-cpp" CACHE PATH
    "Apple's metal-cpp, the folder with Metal/Metal.hpp; scripts/metal-cpp fetches it")
if (NOT EXISTS ${CACHEGEN_METAL_CPP}/Metal/Metal.hpp)
    message(FATAL_ERROR "${CACHEGEN_METAL_CPP} has no Metal/Metal.hpp. Run scripts/metal-cpp, or set CACHEGEN_METAL_CPP")
endif()

set(metal_dir ${CACHEGEN_KERNEL_DIR}/metal)
set(metal_texts ${metal_dir}/decode.metal ${metal_dir}/encode.metal ${metal_dir}/legacy.metal)
set(metal_sources ${CMAKE_CURRENT_BINARY_DIR}/metal_sources.cpp)
file(GLOB metal_headers CONFIGURE_DEPENDS ${CACHEGEN_KERNEL_DIR}/*.h ${metal_dir}/*.h)
add_custom_command(
    OUTPUT ${metal_sources}
    COMMAND ${Python_EXECUTABLE} ${metal_dir}/flatten.py --output ${metal_sources} ${metal_texts}
    DEPENDS ${metal_dir}/flatten.py ${metal_texts} ${metal_headers}
    COMMENT "Embedding the Metal kernels of the KV codec"
    VERBATIM
)

add_library(cachegen-metal STATIC
    ${CACHEGEN_KERNEL_HOST_SOURCES}
    ${metal_dir}/launch_shape.cpp
    ${metal_dir}/metal_cpp.cpp
    ${metal_dir}/metal_device.cpp
    ${metal_dir}/metal_errors.cpp
    ${metal_dir}/metal_library.cpp
    ${metal_dir}/metal_memory.cpp
    ${metal_dir}/metal_queue.cpp
    ${metal_sources}
)
target_include_directories(cachegen-metal PUBLIC ${CACHEGEN_KERNEL_DIR} PRIVATE ${metal_dir})
target_include_directories(cachegen-metal SYSTEM PUBLIC ${CACHEGEN_METAL_CPP})
target_link_libraries(cachegen-metal PUBLIC cachegen)
if (APPLE)
    target_link_libraries(cachegen-metal PUBLIC "-framework Foundation" "-framework Metal")
endif()
target_compile_features(cachegen-metal PUBLIC cxx_std_17)
# metal-cpp declares functions that take blocks
target_compile_options(cachegen-metal PUBLIC $<$<COMPILE_LANGUAGE:CXX>:-fblocks>)
target_compile_options(cachegen-metal PRIVATE -Wall -Wextra -Wno-missing-field-initializers)
set_target_properties(cachegen-metal PROPERTIES POSITION_INDEPENDENT_CODE ON CXX_VISIBILITY_PRESET hidden)
