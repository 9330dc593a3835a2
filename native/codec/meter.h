// Counts the heap memory that the codec holds, for callers that want to know how much a call took at most.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <type_traits>
#include <vector>

namespace cachegen {

// Must outlive everything that was allocated under it. May be used by several threads at once.
class memory_meter {
  public:
    void take(uint64_t n_bytes) {
        const uint64_t now  = now_.fetch_add(n_bytes, std::memory_order_relaxed) + n_bytes;
        uint64_t       peak = peak_.load(std::memory_order_relaxed);
        while (now > peak && !peak_.compare_exchange_weak(peak, now, std::memory_order_relaxed)) {
        }
    }

    void give(uint64_t n_bytes) { now_.fetch_sub(n_bytes, std::memory_order_relaxed); }

    uint64_t peak() const { return peak_.load(std::memory_order_relaxed); }

  private:
    std::atomic<uint64_t> now_{ 0 };
    std::atomic<uint64_t> peak_{ 0 };
};

// what this thread allocates for now counts into; NULL: nothing
memory_meter * active_meter();

// While it lives, what this thread allocates counts into a meter. run_tasks() hands it on to the tasks.
class metering {
  public:
    explicit metering(memory_meter * meter);
    ~metering();
    metering(const metering &)             = delete;
    metering & operator=(const metering &) = delete;

  private:
    memory_meter * before_;
};

// Keeps the meter that was active when the container was made: memory is given back to the one it was taken from.
template <typename T> struct metered_allocator {
    using value_type                             = T;
    using propagate_on_container_move_assignment = std::true_type;
    using propagate_on_container_swap            = std::true_type;

    memory_meter * meter = active_meter();

    metered_allocator() = default;
    template <typename U> metered_allocator(const metered_allocator<U> & other) : meter(other.meter) {}

    T * allocate(size_t n) {
        T * result = std::allocator<T>().allocate(n);
        if (meter != nullptr) {
            meter->take(n * sizeof(T));
        }
        return result;
    }

    void deallocate(T * p, size_t n) {
        std::allocator<T>().deallocate(p, n);
        if (meter != nullptr) {
            meter->give(n * sizeof(T));
        }
    }

    template <typename U> bool operator==(const metered_allocator<U> & other) const { return meter == other.meter; }
    template <typename U> bool operator!=(const metered_allocator<U> & other) const { return meter != other.meter; }
};

template <typename T> using metered_vector = std::vector<T, metered_allocator<T>>;

// n values that nobody has set
template <typename T> class metered_array {
  public:
    explicit metered_array(size_t n) : n_(n), data_(allocator_.allocate(n)) {}
    ~metered_array() { allocator_.deallocate(data_, n_); }
    metered_array(const metered_array &)             = delete;
    metered_array & operator=(const metered_array &) = delete;

    T * get() { return data_; }
    T & operator[](size_t i) { return data_[i]; }

  private:
    static_assert(std::is_trivial<T>::value, "nothing is constructed");

    metered_allocator<T> allocator_;
    size_t               n_;
    T *                  data_;
};

} // namespace cachegen
