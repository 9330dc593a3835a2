#pragma once

#include <cstddef>
#include <cstdint>

using CFTypeRef      = const void *;
using CFStringRef    = const struct __CFString *;
using CFAllocatorRef = const struct __CFAllocator *;
using CFIndex        = long;
using CFTimeInterval = double;
using Boolean        = signed char;
