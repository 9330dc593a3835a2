# What a device's decoder and encoder are made of besides its launches: host code, and for tests an emulated device.

set(CACHEGEN_KERNEL_DIR ${CMAKE_CURRENT_LIST_DIR})

set(CACHEGEN_KERNEL_HOST_SOURCES
    ${CACHEGEN_KERNEL_DIR}/archive_decoder.cpp
    ${CACHEGEN_KERNEL_DIR}/archive_encoder.cpp
    ${CACHEGEN_KERNEL_DIR}/decode_plan.cpp
    ${CACHEGEN_KERNEL_DIR}/encode_plan.cpp
    ${CACHEGEN_KERNEL_DIR}/legacy_decoder.cpp
    ${CACHEGEN_KERNEL_DIR}/legacy_plan.cpp
    ${CACHEGEN_KERNEL_DIR}/plan_rows.cpp
    ${CACHEGEN_KERNEL_DIR}/sample_counter.cpp
)

set(CACHEGEN_KERNEL_EMULATOR_SOURCES
    ${CACHEGEN_KERNEL_DIR}/cpu/emulated_device.cpp
    ${CACHEGEN_KERNEL_DIR}/cpu/lanes.cpp
)
