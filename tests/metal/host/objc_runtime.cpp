#include "objc_runtime.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

struct objc_selector {
    std::string name;
};

struct objc_class : objc_object {
    std::string                        name;
    std::unordered_map<SEL, IMP>       methods;
    std::unique_ptr<struct objc_class> meta; // whose methods the class itself has
};

namespace objc {

namespace {

struct known_object {
    Class of;
    bool  is_alive;
};

struct runtime {
    std::mutex                                                      mutex;
    std::unordered_map<std::string, std::unique_ptr<objc_selector>> selectors;
    std::unordered_map<std::string, std::unique_ptr<objc_class>>    classes;
    std::unordered_map<const void *, known_object>                  objects;
    std::map<std::string, uint64_t>                                 n_alive; // by class
};

// never destroyed: static objects of others come here when the process ends
runtime & the() {
    static runtime & one = *new runtime;
    return one;
}

struct pool : object {
    std::vector<object *> members;
};

thread_local std::vector<pool *> pools;

Class find_class(const std::string & name) {
    runtime &                         all = the();
    const std::lock_guard<std::mutex> lock(all.mutex);
    auto &                            found = all.classes[name];
    if (!found) {
        found             = std::make_unique<objc_class>();
        found->name       = name;
        found->meta       = std::make_unique<objc_class>();
        found->meta->name = name + " (class)";
        found->isa        = found->meta.get();
    }
    return found.get();
}

bool is_pool(const object * of) {
    return of->isa->name == "NSAutoreleasePool";
}

void drain(pool * which) {
    if (pools.empty() || pools.back() != which) {
        broken("a pool is drained that is not the innermost of its thread");
    }
    pools.pop_back();
    for (object * const member : which->members) {
        release(member);
    }
    which->members.clear();
}

object * retain_method(object * self, SEL) {
    retain(self);
    return self;
}

void release_method(object * self, SEL) {
    release(self);
}

object * autorelease_method(object * self, SEL) {
    return autorelease(self);
}

uintptr_t retain_count_method(object * self, SEL) {
    return static_cast<uintptr_t>(self->n_references);
}

bool responds_method(object * self, SEL, SEL selector) {
    return class_respondsToSelector(self->isa, selector);
}

// methods that every class has
IMP common_method(const std::string & name) {
    if (name == "retain") {
        return reinterpret_cast<IMP>(retain_method);
    }
    if (name == "release") {
        return reinterpret_cast<IMP>(release_method);
    }
    if (name == "autorelease") {
        return reinterpret_cast<IMP>(autorelease_method);
    }
    if (name == "retainCount") {
        return reinterpret_cast<IMP>(retain_count_method);
    }
    if (name == "respondsToSelector:") {
        return reinterpret_cast<IMP>(responds_method);
    }
    return nullptr;
}

const bool has_pools = [] {
    class_method("NSAutoreleasePool", "alloc", +[](Class, SEL) -> object * { return make<pool>("NSAutoreleasePool"); });
    method(
        "NSAutoreleasePool", "init", +[](pool * self, SEL) -> object * {
            pools.push_back(self);
            return self;
        });
    return true;
}();

} // namespace

void broken(const char * format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fprintf(stderr, "a rule of Metal is broken: ");
    vfprintf(stderr, format, arguments);
    fprintf(stderr, "\n");
    va_end(arguments);
    abort();
}

object * add(object * made, const char * class_name) {
    made->isa                             = find_class(class_name);
    runtime &                         all = the();
    const std::lock_guard<std::mutex> lock(all.mutex);
    all.objects[made] = { made->isa, true };
    all.n_alive[made->isa->name]++;
    return made;
}

void retain(object * of) {
    const std::lock_guard<std::mutex> lock(the().mutex);
    of->n_references++;
}

void release(object * of) {
    bool is_last;
    {
        const std::lock_guard<std::mutex> lock(the().mutex);
        const auto                        found = the().objects.find(of);
        if (found == the().objects.end() || !found->second.is_alive) {
            broken("a %s is released that is gone",
                   found == the().objects.end() ? "thing" : found->second.of->name.c_str());
        }
        is_last = --of->n_references == 0;
        if (is_last && !is_pool(of)) {
            found->second.is_alive = false;
            the().n_alive[of->isa->name]--;
        }
    }
    if (!is_last) {
        return;
    }
    if (is_pool(of)) {
        drain(static_cast<pool *>(of));
        const std::lock_guard<std::mutex> lock(the().mutex);
        the().objects.at(of).is_alive = false;
        the().n_alive[of->isa->name]--;
    }
    of->destroy(of); // what it holds is released; its own memory stays
}

object * autorelease(object * of) {
    if (pools.empty()) {
        broken("a %s is autoreleased without a pool", of->isa->name.c_str());
    }
    pools.back()->members.push_back(of);
    return of;
}

uint64_t n_objects() {
    const std::lock_guard<std::mutex> lock(the().mutex);
    uint64_t                          n = 0;
    for (const auto & [name, n_alive] : the().n_alive) {
        n += name == "NSAutoreleasePool" ? 0 : n_alive;
    }
    return n;
}

std::string objects() {
    const std::lock_guard<std::mutex> lock(the().mutex);
    std::string                       words;
    for (const auto & [name, n_alive] : the().n_alive) {
        if (n_alive > 0) {
            words += std::to_string(n_alive) + " " + name + " ";
        }
    }
    return words;
}

void add_method(const char * class_name, const char * selector, IMP function) {
    const Class                       of   = find_class(class_name);
    const SEL                         name = sel_registerName(selector);
    const std::lock_guard<std::mutex> lock(the().mutex);
    of->methods[name] = function;
}

void add_class_method(const char * class_name, const char * selector, IMP function) {
    const Class                       of   = find_class(class_name);
    const SEL                         name = sel_registerName(selector);
    const std::lock_guard<std::mutex> lock(the().mutex);
    of->meta->methods[name] = function;
}

void remove_method(const char * class_name, const char * selector) {
    const Class                       of   = find_class(class_name);
    const SEL                         name = sel_registerName(selector);
    const std::lock_guard<std::mutex> lock(the().mutex);
    of->methods.erase(name);
}

} // namespace objc

extern "C" {

Class objc_lookUpClass(const char * name) {
    return objc::find_class(name);
}

Protocol * objc_getProtocol(const char *) {
    return nullptr;
}

SEL sel_registerName(const char * name) {
    objc::runtime &                   all = objc::the();
    const std::lock_guard<std::mutex> lock(all.mutex);
    auto &                            found = all.selectors[name];
    if (!found) {
        found = std::make_unique<objc_selector>(objc_selector{ name });
    }
    return found.get();
}

Class object_getClass(id object) {
    return object->isa;
}

bool class_respondsToSelector(Class which, SEL selector) {
    const std::lock_guard<std::mutex> lock(objc::the().mutex);
    return which->methods.count(selector) != 0;
}

// the function of a message; self is not NULL
IMP objc_find_method(id self, SEL selector) {
    objc::runtime &                   all = objc::the();
    const std::lock_guard<std::mutex> lock(all.mutex);
    Class                             of    = nullptr;
    const auto                        found = all.objects.find(self);
    if (found != all.objects.end()) {
        if (!found->second.is_alive) {
            objc::broken("%s is sent to a %s that is gone", selector->name.c_str(), found->second.of->name.c_str());
        }
        of = found->second.of;
    } else { // a class, or nothing that we know
        for (const auto & [name, one] : all.classes) {
            of = self == one.get() ? one->meta.get() : of;
        }
    }
    if (of == nullptr) {
        objc::broken("%s is sent to %p, which is no object", selector->name.c_str(), static_cast<void *>(self));
    }
    const auto method = of->methods.find(selector);
    if (method != of->methods.end()) {
        return method->second;
    }
    const IMP common = objc::common_method(selector->name);
    if (common == nullptr) {
        objc::broken("%s has no method %s", of->name.c_str(), selector->name.c_str());
    }
    return common;
}
}

#if !defined(__x86_64__)
#    error "objc_msgSend is written for x86-64"
#endif

// Finds the function and goes on to it with all arguments where they are; a message to NULL gives 0.
asm(R"(
    .text
    .globl objc_msgSend
    .globl objc_msgSend_fpret
    .globl objc_msgSend_stret
    .type objc_msgSend, @function
objc_msgSend:
objc_msgSend_fpret:
    .cfi_startproc
    testq %rdi, %rdi
    je 1f
    pushq %rbp
    .cfi_def_cfa_offset 16
    .cfi_offset %rbp, -16
    movq %rsp, %rbp
    .cfi_def_cfa_register %rbp
    subq $192, %rsp
    movq %rdi, 0(%rsp)
    movq %rsi, 8(%rsp)
    movq %rdx, 16(%rsp)
    movq %rcx, 24(%rsp)
    movq %r8, 32(%rsp)
    movq %r9, 40(%rsp)
    movq %rax, 48(%rsp)
    movups %xmm0, 64(%rsp)
    movups %xmm1, 80(%rsp)
    movups %xmm2, 96(%rsp)
    movups %xmm3, 112(%rsp)
    movups %xmm4, 128(%rsp)
    movups %xmm5, 144(%rsp)
    movups %xmm6, 160(%rsp)
    movups %xmm7, 176(%rsp)
    call objc_find_method@PLT
    movq %rax, %r11
    movq 0(%rsp), %rdi
    movq 8(%rsp), %rsi
    movq 16(%rsp), %rdx
    movq 24(%rsp), %rcx
    movq 32(%rsp), %r8
    movq 40(%rsp), %r9
    movq 48(%rsp), %rax
    movups 64(%rsp), %xmm0
    movups 80(%rsp), %xmm1
    movups 96(%rsp), %xmm2
    movups 112(%rsp), %xmm3
    movups 128(%rsp), %xmm4
    movups 144(%rsp), %xmm5
    movups 160(%rsp), %xmm6
    movups 176(%rsp), %xmm7
    leave
    .cfi_def_cfa %rsp, 8
    jmp *%r11
1:
    xorl %eax, %eax
    xorps %xmm0, %xmm0
    ret
    .cfi_endproc
    .size objc_msgSend, .-objc_msgSend
    .type objc_msgSend_stret, @function
objc_msgSend_stret:
    ud2
    .size objc_msgSend_stret, .-objc_msgSend_stret
)");
