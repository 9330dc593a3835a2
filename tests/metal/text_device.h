// A device that runs the text of Metal's kernels on the processor, as a Mac's device launches them: argument records,
// launch shapes and threadgroup memory are those of metal/launch_shape.h.
#pragma once

#include "cpu/emulated_device.h"
#include "metal/launch_shape.h"
#include "text_kernels.h"

#include <map>
#include <string>

class text_device : public kernels::emulated_device {
  public:
    // order: as in lanes::run_options
    explicit text_device(uint32_t order, const kernels::metal_limits & limits = default_limits());

    // few threadgroups of three simdgroups: they share tables, and take jobs in turn
    static kernels::metal_limits default_limits() { return { 32 << 10, 96, 2 }; }

    bool has_memory_tables() const override { return true; }

    void launch(const kernels::planned_launch & launch, const kernels::launch_buffers & in,
                uint32_t device_slot) override;
    void launch_legacy(const kernels::legacy_launch & launch, const kernels::legacy_buffers & in,
                       uint32_t device_slot) override;
    void launch_encode(const kernels::encode_launch & launch, const kernels::encode_buffers & in) override;

    // how often each kernel was launched; of all devices
    static const std::map<std::string, uint64_t> & launched();

  private:
    template <typename Arguments> void run(const kernels::launch_shape & shape, const Arguments & arguments);

    kernels::metal_limits limits_;
};
