// What metal-cpp uses of the Objective-C runtime; objc_runtime.cpp has it.
#pragma once

#include <cstddef>
#include <cstdint>

using Class = struct objc_class *;
struct objc_object {
    Class isa;
};
using id       = objc_object *;
using SEL      = struct objc_selector *;
using BOOL     = signed char;
using Method   = struct objc_method *;
using Protocol = struct objc_protocol;
using IMP      = void (*)();

#define OBJC_EXPORT extern "C"

extern "C" {
Class      objc_lookUpClass(const char * name);
SEL        sel_registerName(const char * name);
Protocol * objc_getProtocol(const char * name);
bool       class_respondsToSelector(Class which, SEL selector);
Class      object_getClass(id object);
}
