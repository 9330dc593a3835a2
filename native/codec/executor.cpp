#include "executor.h"

#include "meter.h"
#include "status.h"

#include <atomic>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace cachegen {

namespace {

struct run_state {
    const std::function<void(uint64_t)> * body;
    memory_meter *                        meter = active_meter(); // of the calling thread
    std::atomic<bool>                     failed{ false };
    std::mutex                            mutex;
    std::exception_ptr                    first_failure;
};

void run_one(void * context, uint64_t index) {
    auto & state = *static_cast<run_state *>(context);
    if (state.failed.load(std::memory_order_relaxed)) {
        return;
    }
    const metering of_caller(state.meter);
    try {
        (*state.body)(index);
    } catch (...) {
        const std::lock_guard<std::mutex> lock(state.mutex);
        if (!state.failed.exchange(true)) {
            state.first_failure = std::current_exception();
        }
    }
}

// Threads that wait for a job and take its tasks one by one.
class thread_pool {
  public:
    explicit thread_pool(uint32_t n_threads) {
        try {
            for (uint32_t i = 1; i < n_threads; i++) {
                threads_.emplace_back([this] { work(); });
            }
        } catch (...) {
            stop();
            throw;
        }
    }

    ~thread_pool() { stop(); }

    void run(uint64_t n_tasks, void (*task)(void *, uint64_t), void * context) {
        const std::lock_guard<std::mutex> one_job(job_mutex_);
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            task_    = task;
            context_ = context;
            n_tasks_ = n_tasks;
            next_.store(0, std::memory_order_relaxed);
            n_working_ = threads_.size();
            job_++;
        }
        wake_.notify_all();
        take_tasks(task, context, n_tasks);
        std::unique_lock<std::mutex> lock(mutex_);
        done_.wait(lock, [this] { return n_working_ == 0; });
    }

  private:
    void take_tasks(void (*task)(void *, uint64_t), void * context, uint64_t n_tasks) {
        for (uint64_t i = next_.fetch_add(1); i < n_tasks; i = next_.fetch_add(1)) {
            task(context, i);
        }
    }

    void work() {
        uint64_t seen_job = 0;
        for (;;) {
            std::unique_lock<std::mutex> lock(mutex_);
            wake_.wait(lock, [&] { return is_stopping_ || job_ != seen_job; });
            if (is_stopping_) {
                return;
            }
            seen_job               = job_;
            auto * const   task    = task_;
            void * const   context = context_;
            const uint64_t n_tasks = n_tasks_;
            lock.unlock();
            take_tasks(task, context, n_tasks);
            lock.lock();
            if (--n_working_ == 0) {
                done_.notify_all();
            }
        }
    }

    void stop() {
        {
            const std::lock_guard<std::mutex> lock(mutex_);
            is_stopping_ = true;
        }
        wake_.notify_all();
        for (auto & thread : threads_) {
            thread.join();
        }
    }

    std::mutex               job_mutex_;
    std::mutex               mutex_;
    std::condition_variable  wake_;
    std::condition_variable  done_;
    std::vector<std::thread> threads_;
    void (*task_)(void *, uint64_t)    = nullptr;
    void *                context_     = nullptr;
    uint64_t              n_tasks_     = 0;
    uint64_t              job_         = 0;
    size_t                n_working_   = 0;
    bool                  is_stopping_ = false;
    std::atomic<uint64_t> next_{ 0 };
};

void pool_parallel_for(void * state, uint64_t n_tasks, void (*task)(void *, uint64_t), void * context) {
    static_cast<thread_pool *>(state)->run(n_tasks, task, context);
}

} // namespace

void run_tasks(const cachegen_executor * executor, uint64_t n_tasks, const std::function<void(uint64_t)> & body) {
    if (executor == nullptr || n_tasks < 2) {
        for (uint64_t i = 0; i < n_tasks; i++) {
            body(i);
        }
        return;
    }
    run_state state;
    state.body = &body;
    executor->parallel_for(executor->state, n_tasks, run_one, &state);
    if (state.failed) {
        std::rethrow_exception(state.first_failure);
    }
}

} // namespace cachegen

int32_t cachegen_executor_new(uint32_t n_threads, struct cachegen_executor ** executor) {
    return cachegen::guard([&] {
        if (executor == nullptr) {
            cachegen::fail(CACHEGEN_ERR_ARGUMENT, "executor is NULL");
        }
        *executor = nullptr;
        if (n_threads < 1 || n_threads > 1024) {
            cachegen::fail(CACHEGEN_ERR_ARGUMENT, "%u threads; choose 1 to 1024", n_threads);
        }
        auto pool   = std::make_unique<cachegen::thread_pool>(n_threads);
        auto result = std::make_unique<cachegen_executor>();
        *result     = { pool.get(), cachegen::pool_parallel_for };
        pool.release();
        *executor = result.release();
    });
}

void cachegen_executor_free(struct cachegen_executor * executor) {
    if (executor != nullptr) {
        delete static_cast<cachegen::thread_pool *>(executor->state);
        delete executor;
    }
}
