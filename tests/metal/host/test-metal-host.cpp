// Metal's host code as it runs on a Mac, on a fake device that is stricter than a real one: see fake_metal.h. Archives
// are decoded and encoded with the text of Metal's kernels, and compared with libcachegen's.
#include "encoder_parity.h"
#include "fake_metal.h"
#include "harness.h"
#include "kernel_parity.h"
#include "legacy_parity.h"
#include "metal/metal_device.h"
#include "objc_runtime.h"
#include "status.h"

#include <memory>
#include <random>
#include <sys/mman.h>
#include <unistd.h>

namespace {

using fake_metal::settings;
using bytes = std::vector<uint8_t>;

// A fake device and its queue; afterwards nothing is left of them or of what was made for them.
class machine {
  public:
    explicit machine(const settings & with = {}) {
        fake_metal::set(with);
        device_ = fake_metal::make_device();
        queue_  = fake_metal::make_queue(device_);
    }

    // fails the test if an object is left over
    void check_and_free() {
        kernels::release_metal_libraries();
        queue_->release();
        device_->release();
        if (objc::n_objects() != 0) {
            printf("left over: %s\n", objc::objects().c_str());
        }
        CHECK_EQ(objc::n_objects(), uint64_t(0));
    }

    MTL::Device *       device() const { return device_; }
    MTL::CommandQueue * queue() const { return queue_; }

  private:
    MTL::Device *       device_;
    MTL::CommandQueue * queue_;
};

// use(device of the codec)
template <typename Use> void with_device(const settings & with, const Use & use) {
    machine here(with);
    {
        kernels::metal_device device(here.device(), here.queue(), {});
        use(device);
    }
    here.check_and_free();
}

struct setup {
    const char * name;
    bool         runs_at_once;
    bool         is_unified;
};

constexpr setup setups[] = {
    { "unified memory, commands run late", false, true },
    { "unified memory, commands run at once", true, true },
    { "memory of its own, commands run late", false, false },
    { "memory of its own, commands run at once", true, false },
};

settings settings_of(const setup & of) {
    settings result;
    result.runs_at_once = of.runs_at_once;
    result.is_unified   = of.is_unified;
    return result;
}

template <typename Use> void with_every_setup(const Use & use) {
    for (const auto & one : setups) {
        SCOPE(one.name);
        with_device(settings_of(one), use);
    }
}

bytes random_bytes(std::mt19937 & random, uint64_t n) {
    bytes result(n);
    for (auto & byte : result) {
        byte = static_cast<uint8_t>(random());
    }
    return result;
}

// the status and the words of what a body throws
struct outcome {
    int32_t     status;
    std::string words;
};

template <typename Body> outcome outcome_of(const Body & body) {
    const int32_t status = cachegen::guard(body);
    return { status, status == CACHEGEN_OK ? "" : cachegen_last_message() };
}

} // namespace

TEST(pages) {
    with_every_setup([](kernels::metal_device & device) { kernel_parity::compare_pages(device, 1, false); });
    printf("%llu launches, %llu copies, %llu pipelines of %llu libraries\n",
           static_cast<unsigned long long>(fake_metal::counted().n_dispatches),
           static_cast<unsigned long long>(fake_metal::counted().n_copies),
           static_cast<unsigned long long>(fake_metal::counted().n_pipelines),
           static_cast<unsigned long long>(fake_metal::counted().n_libraries));
    CHECK(fake_metal::counted().n_dispatches > 100);
}

TEST(damaged) {
    with_device({}, [](kernels::metal_device & device) { CHECK(kernel_parity::compare_damaged(device, 100) > 10); });
}

TEST(encoded_pages) {
    with_every_setup([](kernels::metal_device & device) {
        encoder_parity::unit_counts counts;
        encoder_parity::compare_archives(device, 3, false, counts);
        CHECK(counts.n_made > 100);
        CHECK(counts.n_counted > 20);
    });
}

TEST(encoding_refused) {
    with_device({}, [](kernels::metal_device & device) { CHECK(encoder_parity::compare_refused(device, 20) > 5); });
}

TEST(legacy) {
    with_every_setup([](kernels::metal_device & device) {
        CHECK_EQ(kernel_parity::compare_legacy_parts(device, 1, false).size(), size_t(16));
        CHECK_EQ(kernel_parity::compare_legacy_pages(device, 5), uint64_t(5));
    });
}

TEST(legacy_damaged) {
    with_device({}, [](kernels::metal_device & device) {
        CHECK(kernel_parity::compare_damaged_legacy(device, 100).count("OK") > 0);
    });
}

// bytes at any offset and of any length, into private and into shared memory, are where they belong, and what is around
// them stays
TEST(copies) {
    for (const auto & one : setups) {
        SCOPE(one.name);
        for (const auto mode : { MTL::ResourceStorageModePrivate, MTL::ResourceStorageModeShared }) {
            machine       here(settings_of(one));
            MTL::Buffer * buffer = here.device()->newBuffer(100000, mode);
            std::mt19937  random(7);
            bytes         expected = random_bytes(random, 100000);
            {
                kernels::metal_device device(here.device(), here.queue(), { buffer });
                device.upload(buffer->gpuAddress(), expected.data(), expected.size());
                for (uint32_t i = 0; i < 200; i++) {
                    const uint64_t at   = random() % 90000;
                    const bytes    some = random_bytes(random, random() % 9000);
                    std::copy(some.begin(), some.end(), expected.begin() + static_cast<std::ptrdiff_t>(at));
                    device.upload(buffer->gpuAddress() + at, some.data(), some.size());

                    const uint64_t from = random() % 90000;
                    bytes          there(random() % 9000);
                    device.download(there.data(), buffer->gpuAddress() + from, there.size());
                    CHECK(std::equal(there.begin(), there.end(), expected.begin() + static_cast<std::ptrdiff_t>(from)));
                }
                device.clear(buffer->gpuAddress() + 400, 1200);
                std::fill_n(expected.begin() + 400, 1200, uint8_t{ 0 });
                // rows: 7 of 33 bytes, 1001 bytes apart there and 40 here
                bytes rows(7 * 40, 0x11);
                device.download_2d(rows.data(), 40, buffer->gpuAddress() + 301, 1001, 33, 7);
                for (uint64_t i = 0; i < 7; i++) {
                    for (uint64_t j = 0; j < 40; j++) {
                        CHECK_EQ(rows[i * 40 + j], j < 33 ? expected[301 + i * 1001 + j] : uint8_t{ 0x11 });
                    }
                }
                CHECK_EQ(outcome_of([&] { device.upload(buffer->gpuAddress() + 99999, "ab", 2); }).status,
                         int32_t(CACHEGEN_ERR_INTERNAL));
                CHECK_EQ(outcome_of([&] { device.clear(buffer->gpuAddress() + 2, 4); }).status,
                         int32_t(CACHEGEN_ERR_INTERNAL));
            }
            CHECK(fake_metal::bytes_of(buffer, 0, expected.size()) == std::string(expected.begin(), expected.end()));
            buffer->release();
            here.check_and_free();
        }
    }
}

// rows of a private buffer come in pieces
TEST(many_rows) {
    with_every_setup([](kernels::metal_device & device) {
        std::mt19937   random(3);
        const bytes    data    = random_bytes(random, 12 << 20);
        const uint64_t address = device.allocate(data.size());
        device.upload(address, data.data(), data.size());
        bytes rows(11 * (1 << 20));
        device.download_2d(rows.data(), 1 << 20, address + 2, (1 << 20) + 2, 1 << 20, 11);
        for (uint64_t i = 0; i < 11; i++) {
            CHECK(memcmp(rows.data() + (i << 20), data.data() + 2 + i * ((1 << 20) + 2), 1 << 20) == 0);
        }
        device.release(address);
    });
}

// memory of whole pages is not copied on its way, but where Metal cannot have it
TEST(whole_pages) {
    machine      here;
    const auto   page = static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
    auto * const memory =
        static_cast<uint8_t *>(mmap(nullptr, 3 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    {
        kernels::metal_device device(here.device(), here.queue(), {});
        const uint64_t        address = device.allocate(3 * page);
        std::fill_n(memory, 3 * page, uint8_t{ 0x42 });
        device.upload(address, memory, 3 * page);
        CHECK_EQ(fake_metal::counted().n_borrowed, uint64_t(1));
        device.upload(address, memory + 16, page);
        CHECK_EQ(fake_metal::counted().n_borrowed, uint64_t(1));
        bytes there(3 * page);
        device.download(there.data(), address, there.size());
        CHECK(there == bytes(3 * page, 0x42));
        device.release(address);
    }
    here.check_and_free();
    settings with;
    with.fail_at = 2; // after the allocation
    with_device(with, [&](kernels::metal_device & device) {
        const uint64_t address = device.allocate(3 * page);
        device.upload(address, memory, 3 * page);
        CHECK(fake_metal::counted().n_failing > 2);
        CHECK_EQ(fake_metal::counted().n_borrowed, uint64_t(0));
        bytes there(3 * page);
        device.download(there.data(), address, there.size());
        CHECK(there == bytes(3 * page, 0x42));
        device.release(address);
    });
    munmap(memory, 3 * page);
}

// What a graph does to a cache before and after stays before and after: the codec uses the graphs' queue.
TEST(order) {
    for (const auto & one : setups) {
        SCOPE(one.name);
        machine       here(settings_of(one));
        MTL::Buffer * cache = here.device()->newBuffer(4096, MTL::ResourceStorageModeShared);
        {
            kernels::metal_device device(here.device(), here.queue(), { cache });
            const bytes           ours(1024, 0x55);
            bytes                 there(1024);
            fake_metal::fill_later(here.queue(), cache, 0, 4096, 0x11);
            device.upload(cache->gpuAddress(), ours.data(), ours.size());
            CHECK(fake_metal::bytes_of(cache, 0, 1024) == std::string(1024, 0x55));
            // what a graph writes is what is read afterwards, although nobody has waited for it
            fake_metal::fill_later(here.queue(), cache, 1024, 1024, 0x22);
            device.download(there.data(), cache->gpuAddress() + 1024, there.size());
            CHECK(there == bytes(1024, 0x22));
            device.clear(cache->gpuAddress(), 512);
            device.wait();
            fake_metal::fill_later(here.queue(), cache, 0, 256, 0x33);
            fake_metal::run_all(here.queue());
            CHECK(fake_metal::bytes_of(cache, 0, 1024) ==
                  std::string(256, 0x33) + std::string(256, 0) + std::string(512, 0x55));
        }
        cache->release();
        here.check_and_free();
    }
}

// A slot is the host's again when everything that reads it is done, and its bytes are those of its own part.
TEST(slots) {
    for (const auto & one : setups) {
        SCOPE(one.name);
        with_device(settings_of(one), [&](kernels::metal_device & device) {
            device.make_slots(10000);
            CHECK(device.n_host_slots() >= 2);
            CHECK_EQ(device.n_device_slots(), device.n_host_slots());
            CHECK(device.host_slot_bytes() >= 10000u * device.n_host_slots());
            // a private copy is not needed where the device reads the host's memory
            CHECK_EQ(device.device_slot_bytes(), one.is_unified ? uint64_t(0) : device.host_slot_bytes());
            const uint32_t        n = device.n_host_slots();
            std::vector<uint64_t> addresses;
            for (uint32_t i = 0; i < n; i++) {
                addresses.push_back(device.slot_address(i));
            }
            device.make_slots(9000); // they are large enough
            for (uint32_t i = 0; i < n; i++) {
                CHECK_EQ(device.slot_address(i), addresses[i]);
            }
            device.make_slots(1 << 20);
            // another host slot than the device slot's own
            for (uint32_t round = 0; round < 3; round++) {
                memset(device.host_slot(0), static_cast<int>(0x60 + round), 10000);
                device.submit(0, 1, 10000, false);
                device.retire(1);
                bytes there(10000);
                memset(device.host_slot(0), 0x7F, 10000);
                device.download(there.data(), device.slot_address(1), there.size());
                CHECK(there == bytes(10000, static_cast<uint8_t>(0x60 + round)));
            }
            // a fill that came before it is before it
            memset(device.host_slot(0), 0x31, 10000);
            device.clear(device.slot_address(1), 10000);
            device.submit(0, 1, 10000, true);
            device.retire(1);
            bytes there(10000);
            device.download(there.data(), device.slot_address(1), there.size());
            CHECK(there == bytes(10000, 0x31));
            // the host's slot of the same number is not its own before what uses its memory is done
            device.submit(0, 1, 10000, false);
            device.retire(1);
            memset(device.host_slot(1), 0x32, 10000);
            device.download(there.data(), device.slot_address(1), there.size());
            CHECK(there == bytes(10000, one.is_unified ? 0x32 : 0x31));
            CHECK_EQ(outcome_of([&] { device.submit(0, 0, 64 << 20, false); }).status, int32_t(CACHEGEN_ERR_INTERNAL));
        });
    }
}

// a launch may use what was allocated since the one before it
TEST(named_memory) {
    settings with;
    with.fails_commands_only = true; // they are not to run
    with.fail_at             = 1;
    with_device(with, [](kernels::metal_device & device) {
        const kernels::encode_launch launch{ kernels::encode_kind::lay_out, 0, 1, 0, 0, 1 };
        kernels::encode_buffers      in{};
        in.n_jobs            = 1;
        const uint64_t first = device.allocate(16);
        device.launch_encode(launch, in);
        CHECK_EQ(fake_metal::counted().n_named, uint64_t(1));
        const uint64_t second = device.allocate(16);
        device.launch_encode(launch, in);
        CHECK_EQ(fake_metal::counted().n_named, uint64_t(2));
        CHECK_EQ(outcome_of([&] { device.wait(); }).status, int32_t(CACHEGEN_ERR_INTERNAL));
        device.release(first);
        device.release(second);
    });
}

// what was before a mark is seen by the host when the mark has been waited for
TEST(marks) {
    with_every_setup([](kernels::metal_device & device) {
        uint8_t * const memory = device.allocate_host(64);
        CHECK_EQ(reinterpret_cast<uint64_t>(memory) % 16, uint64_t(0));
        for (const uint32_t index : { 0u, 1u }) {
            memset(memory, 0x77, 64);
            device.clear(device.address_of(memory + 16), 16);
            device.mark(index);
            device.wait_for_mark(index);
            CHECK(bytes(memory, memory + 16) == bytes(16, 0x77));
            CHECK(bytes(memory + 16, memory + 32) == bytes(16, 0));
            device.mark(index); // nothing is between them
            device.wait_for_mark(index);
        }
        const uint8_t other = 0;
        CHECK_EQ(outcome_of([&] { device.address_of(&other); }).status, int32_t(CACHEGEN_ERR_INTERNAL));
        device.release_host(memory);
        device.release_host(nullptr);
    });
}

TEST(pipelines_are_made_once) {
    machine here;
    for (uint32_t round = 0; round < 2; round++) {
        const auto before = fake_metal::counted();
        {
            kernels::metal_device device(here.device(), here.queue(), {});
            CHECK(kernel_parity::decode_one(device));
            CHECK(encoder_parity::encode_one(device));
        }
        CHECK_EQ(fake_metal::counted().n_pipelines == before.n_pipelines, round > 0);
        CHECK_EQ(fake_metal::counted().n_libraries == before.n_libraries, round > 0);
    }
    here.check_and_free();
}

TEST(devices) {
    settings with;
    // its name before macOS 15
    with.has_math_mode = false;
    with_device(with, [](kernels::metal_device & device) { CHECK(kernel_parity::decode_one(device)); });
    // a pipeline's registers leave room for two simdgroups
    with           = {};
    with.n_threads = 64;
    with_device(with, [](kernels::metal_device & device) {
        CHECK(kernel_parity::decode_one(device));
        CHECK(encoder_parity::encode_one(device));
        CHECK(kernel_parity::decode_legacy_one(device));
    });
}

// what the kernels cannot run on is refused with words that say why
TEST(refused_devices) {
    settings with;
    with.has_metal3 = false;
    {
        machine    here(with);
        const auto refused = outcome_of([&] { kernels::metal_device device(here.device(), here.queue(), {}); });
        CHECK_EQ(refused.status, int32_t(CACHEGEN_ERR_UNSUPPORTED));
        CHECK(refused.words.find("Metal 3") != std::string::npos);
        here.check_and_free();
    }
    with           = {};
    with.simdgroup = 64;
    {
        machine here(with);
        {
            auto device =
                std::make_unique<kernels::metal_device>(here.device(), here.queue(), std::vector<MTL::Buffer *>{});
            std::string why;
            CHECK(!kernel_parity::decode_one(*device, why));
            CHECK(why.find("simdgroups of 64") != std::string::npos);
        }
        here.check_and_free();
    }
}

// whatever call to Metal fails, the failure comes out in Metal's own words, and nothing is left over
TEST(failing_calls) {
    struct work {
        const char * name;
        bool (*succeeds)(kernels::device &, std::string &);
    };
    for (const bool is_unified : { true, false }) {
        for (const auto & one :
             { work{ "decode", kernel_parity::decode_one }, work{ "encode", encoder_parity::encode_one },
               work{ "legacy", kernel_parity::decode_legacy_one } }) {
            SCOPE(one.name);
            if (!is_unified &&
                one.succeeds == static_cast<bool (*)(kernels::device &, std::string &)>(encoder_parity::encode_one)) {
                continue; // the encoder has no slots, all else is the same
            }
            uint64_t n_failed = 0;
            uint64_t n_words  = 0;
            for (uint64_t at = 1;; at++) {
                settings with;
                with.fail_at    = at;
                with.is_unified = is_unified;
                machine     here(with);
                std::string why;
                bool        has_failed = false;
                {
                    kernels::metal_device device(here.device(), here.queue(), {});
                    has_failed = !one.succeeds(device, why);
                }
                here.check_and_free();
                CHECK_EQ(has_failed, fake_metal::counted().n_failing >= at);
                if (!has_failed) {
                    break;
                }
                CHECK(why.find("Metal") != std::string::npos);
                n_failed++;
                n_words += why.find(fake_metal::failure_words) != std::string::npos;
            }
            printf("%s, %s memory: %llu calls failed, %llu with words of Metal's\n", one.name,
                   is_unified ? "unified" : "separate", static_cast<unsigned long long>(n_failed),
                   static_cast<unsigned long long>(n_words));
            CHECK(n_failed > 30);
            CHECK(n_words > 5);
        }
    }
}

// a command buffer that fails does so when it is waited for, for good
TEST(failing_commands) {
    for (const int64_t error :
         { int64_t(MTL::CommandBufferErrorOutOfMemory), int64_t(MTL::CommandBufferErrorTimeout) }) {
        for (uint64_t at = 1; at < 4; at++) {
            settings with;
            with.fail_at             = at;
            with.fails_commands_only = true;
            with.command_error       = error;
            machine here(with);
            {
                kernels::metal_device device(here.device(), here.queue(), {});
                const uint64_t        address = device.allocate(64);
                bytes                 there(64);
                const auto            use = [&] {
                    device.clear(address, 64);
                    device.mark(0);
                    device.clear(address, 64);
                    device.mark(1);
                    device.wait_for_mark(0);
                    device.wait_for_mark(1);
                    device.download(there.data(), address, there.size());
                };
                for (uint32_t round = 0; round < 2; round++) {
                    const auto failed = outcome_of(use);
                    CHECK_EQ(failed.status,
                             int32_t(error == MTL::CommandBufferErrorOutOfMemory ? CACHEGEN_ERR_OUT_OF_MEMORY
                                                                                 : CACHEGEN_ERR_INTERNAL));
                    CHECK(failed.words.find(fake_metal::failure_words) != std::string::npos);
                }
                device.release(address);
            }
            here.check_and_free();
        }
    }
}

int main(int argc, char ** argv) {
    return harness::run(argc, argv);
}
