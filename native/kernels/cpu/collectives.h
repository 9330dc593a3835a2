// Where lanes meet, for tests: every thread of a workgroup is a fiber.
#pragma once

#include <cstdint>

namespace lanes {

enum class collective : uint32_t { none, ballot, permute, swizzle_xor, fence, sync, done };

// What this lane gets when all lanes of its group have come to the same collective. Of lanes of the wave that have not
// come there, it gets zeros.
uint64_t meet(collective which, uint32_t value, uint32_t argument);

// of the workgroup that runs
uint32_t wave_size();
uint32_t wave_lane();

} // namespace lanes
