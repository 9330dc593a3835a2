// Hostile bytes as an LCG3 archive: every call ends with a status and touches only its own memory.
#include "fuzz-lcg3.h"

int LLVMFuzzerTestOneInput(const uint8_t * data, size_t size) {
    if (size == 0) {
        return 0;
    }
    const auto & isas = fuzz::isas();
    fuzz::use_isa(data[0] & fuzz::lcg3::BEST_ISA ? isas.back() : isas[size % isas.size()]);
    fuzz::lcg3::read(data[0], fuzz::lcg3::archive_of(data[0], data + 1, size - 1), 1u << 17,
                     (data[0] & fuzz::lcg3::SECOND_USE) != 0);
    return 0;
}
