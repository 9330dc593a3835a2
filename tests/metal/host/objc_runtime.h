// A small Objective-C runtime for tests: classes made of C++ functions, reference counts, autorelease pools. What a
// real one lets pass or leaves to chance ends the process here: a message to an object that is gone, a method that its
// class lacks, a release too many, an autorelease without a pool.
#pragma once

#include <cstdint>
#include <new>
#include <objc/message.h>
#include <objc/runtime.h>
#include <string>

namespace objc {

// prints what rule was broken and ends the process
[[noreturn]] void broken(const char * format, ...) __attribute__((format(printf, 1, 2)));

// What every object begins with. Memory of those that are gone stays, so that a message to one is seen.
struct object : objc_object {
    int64_t n_references           = 1;
    void (*destroy)(object * self) = nullptr;
};

// the object, known from now on
object * add(object * made, const char * class_name);

// an object of a class, with one reference
template <typename T> T * make(const char * class_name) {
    T * const made = new (::operator new(sizeof(T))) T;
    made->destroy  = [](object * self) { static_cast<T *>(self)->~T(); };
    add(made, class_name);
    return made;
}

void     retain(object * of);
void     release(object * of);
object * autorelease(object * of);

// objects that are there, pools not counted, and how many of which class
uint64_t    n_objects();
std::string objects();

void add_method(const char * class_name, const char * selector, IMP function);
void add_class_method(const char * class_name, const char * selector, IMP function);
// takes one away: the class as an older system has it
void remove_method(const char * class_name, const char * selector);

// a method as Objective-C declares it: its receiver, its selector, its arguments
template <typename Result, typename Self, typename... Arguments>
void method(const char * class_name, const char * selector, Result (*function)(Self *, SEL, Arguments...)) {
    add_method(class_name, selector, reinterpret_cast<IMP>(function));
}

template <typename Result, typename... Arguments>
void class_method(const char * class_name, const char * selector, Result (*function)(Class, SEL, Arguments...)) {
    add_class_method(class_name, selector, reinterpret_cast<IMP>(function));
}

} // namespace objc
