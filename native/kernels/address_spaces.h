// Where memory is, in declarations that every device and the host read. Metal has to be told, the others know.
#pragma once

#if defined(__METAL_VERSION__)
#    include <metal_stdlib>
using namespace metal;
#    define KC_GLOBAL device               // the device's memory
#    define KC_SHARED threadgroup          // a workgroup's
#    define KC_PRIVATE thread              // a lane's
#    define KC_CONSTANT constant constexpr // of a namespace, or static in a class
// a record of the device's memory for functions that take a lane's: others refer to it where it is
#    define KC_COPY(type) type
#else
#    include <stdint.h>
#    define KC_GLOBAL
#    define KC_SHARED
#    define KC_PRIVATE
#    define KC_CONSTANT constexpr
#    define KC_COPY(type) type &
#endif
