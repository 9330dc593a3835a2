// The one place where metal-cpp's selectors and classes are defined; another module of the process may have its own.
#define NS_PRIVATE_IMPLEMENTATION
#define MTL_PRIVATE_IMPLEMENTATION
#define METALCPP_SYMBOL_VISIBILITY_HIDDEN
#include "metal_cpp.h"
