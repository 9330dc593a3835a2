// Results whose size the caller cannot know before: allocated here, freed by cachegen_free().
#pragma once

#include <cstdint>
#include <vector>

namespace cachegen {

void * copy_for_caller(const std::vector<uint8_t> & bytes);

} // namespace cachegen
