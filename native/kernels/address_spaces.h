// Where memory is, in declarations that every device and the host read. Metal has to be told, the others know.
#pragma once

#if defined(__METAL_VERSION__)
#    define KC_GLOBAL device               // the device's memory
#    define KC_SHARED threadgroup          // a workgroup's
#    define KC_PRIVATE thread              // a lane's
#    define KC_CONSTANT constant constexpr // of a namespace, or static in a class
#else
#    include <stdint.h>
#    define KC_GLOBAL
#    define KC_SHARED
#    define KC_PRIVATE
#    define KC_CONSTANT constexpr
#endif
