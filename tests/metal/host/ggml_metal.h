// The device behind ggml-metal.cpp in tests.
#pragma once

#include "ggml-metal-device.h"

namespace MTL {
class Buffer;
class CommandQueue;
} // namespace MTL

namespace fake_ggml_metal {

// has_shared_buffers: what ggml allocates is seen by the host too
void open(bool has_shared_buffers);
// nothing may be in use
void close();

// of the graphs
MTL::CommandQueue * queue();

MTL::Buffer * buffer_of(const ggml_tensor * tensor);

} // namespace fake_ggml_metal
