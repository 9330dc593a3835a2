# What needs llama.cpp: the CacheGen ABI on a device, and the benchmark of restores. Part of the whole project.
add_executable(test-archive-parity-cuda ${CMAKE_CURRENT_LIST_DIR}/test-archive-parity-cuda.cpp)
target_link_libraries(test-archive-parity-cuda PRIVATE page-fixture)
set_target_properties(test-archive-parity-cuda PROPERTIES BUILD_WITH_INSTALL_RPATH OFF)

set(restore_dir ${CMAKE_CURRENT_LIST_DIR}/restore)

add_executable(bench-restore-cuda
    ${restore_dir}/agreement.cpp
    ${restore_dir}/bench-restore-cuda.cpp
    ${restore_dir}/files.cpp
    ${restore_dir}/model.cpp
    ${restore_dir}/page.cpp
    ${restore_dir}/report.cpp
    ${restore_dir}/restore.cpp
    ${restore_dir}/save.cpp
    ${CMAKE_CURRENT_LIST_DIR}/bench_results.cpp
)
target_link_libraries(bench-restore-cuda PRIVATE page-fixture cachegen)
target_include_directories(bench-restore-cuda PRIVATE ${CMAKE_CURRENT_LIST_DIR})
target_include_directories(bench-restore-cuda SYSTEM PRIVATE
    ${LLAMA_CACHEGEN_LLAMA_DIR}/src
    ${LLAMA_CACHEGEN_LLAMA_DIR}/vendor
)
set_target_properties(bench-restore-cuda PROPERTIES BUILD_WITH_INSTALL_RPATH OFF)
if (LLAMA_CACHEGEN_CUDA)
    find_package(CUDAToolkit REQUIRED)
    target_link_libraries(bench-restore-cuda PRIVATE CUDA::cudart)
    target_compile_definitions(bench-restore-cuda PRIVATE BENCH_CUDA)

    # the backend's calls of the CUDA runtime go to the executable's own functions first
    add_executable(test-archives-cuda
        ${CMAKE_CURRENT_LIST_DIR}/test-archives-cuda.cpp
        ${CMAKE_CURRENT_LIST_DIR}/cuda_faults.cpp
    )
    target_link_libraries(test-archives-cuda PRIVATE page-fixture CUDA::cudart ${CMAKE_DL_LIBS})
    set_target_properties(test-archives-cuda PROPERTIES BUILD_WITH_INSTALL_RPATH OFF ENABLE_EXPORTS ON)
endif()
