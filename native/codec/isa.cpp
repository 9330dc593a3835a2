#include "isa.h"

#include "status.h"

#include <atomic>

#ifdef CACHEGEN_AVX2
#    include <cpuid.h>
#endif

namespace cachegen {

namespace {

#ifdef CACHEGEN_AVX2
// not every compiler knows it by name
bool has_f16c() {
    unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}
#endif

bool is_supported(isa wanted) {
    switch (wanted) {
        case isa::scalar: return true;
#ifdef CACHEGEN_AVX2
        // the compiler's check includes whether the system saves the registers
        case isa::avx2:
            return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("bmi2") &&
                   __builtin_cpu_supports("popcnt") && has_f16c();
#endif
#ifdef CACHEGEN_AVX512
        case isa::avx512:
            return is_supported(isa::avx2) && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                   __builtin_cpu_supports("avx512vbmi");
#endif
#ifdef CACHEGEN_NEON
        case isa::neon: return true; // part of every aarch64
#endif
        default: return false;
    }
}

isa best_isa() {
    for (const isa candidate : { isa::avx512, isa::avx2, isa::neon }) {
        if (is_supported(candidate)) {
            return candidate;
        }
    }
    return isa::scalar;
}

std::atomic<isa> & chosen() {
    static std::atomic<isa> value{ best_isa() };
    return value;
}

} // namespace

isa active_isa() noexcept {
    return chosen().load(std::memory_order_relaxed);
}

} // namespace cachegen

uint32_t cachegen_isa_active(void) {
    return static_cast<uint32_t>(cachegen::active_isa());
}

int32_t cachegen_isa_select(uint32_t isa) {
    return cachegen::guard([&] {
        if (isa > CACHEGEN_ISA_NEON) {
            cachegen::fail(CACHEGEN_ERR_ARGUMENT, "%u is no instruction set", isa);
        }
        const auto wanted = static_cast<cachegen::isa>(isa);
        if (!cachegen::is_supported(wanted)) {
            cachegen::fail(CACHEGEN_ERR_UNSUPPORTED, "this processor or build has no instruction set %u", isa);
        }
        cachegen::chosen().store(wanted, std::memory_order_relaxed);
    });
}
