#include "meter.h"

namespace cachegen {

namespace {

thread_local memory_meter * of_this_thread = nullptr;

} // namespace

memory_meter * active_meter() {
    return of_this_thread;
}

metering::metering(memory_meter * meter) : before_(of_this_thread) {
    of_this_thread = meter;
}

metering::~metering() {
    of_this_thread = before_;
}

} // namespace cachegen
