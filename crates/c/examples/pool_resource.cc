// Containers of the standard library in a pool: std::pmr with a memory_resource of overspill's.
//
//   c++ -std=c++17 -o pool_resource pool_resource.cc $(pkg-config --cflags --libs overspill)
//   ./pool_resource [MIB [DIRECTORY]]     the budget, 64 MiB; where the rest goes, /var/tmp
#include <overspill.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory_resource>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <vector>

namespace overspill {

void check(overspill_error error) {
    if (error != OVERSPILL_OK) throw std::runtime_error(overspill_last_message());
}

/// Each allocation is a region: for large ones. Put std::pmr::synchronized_pool_resource over it
/// for small ones.
class pool_resource : public std::pmr::memory_resource {
public:
    explicit pool_resource(const overspill_options &options) {
        check(overspill_open(&options, &pool));
    }
    pool_resource(const pool_resource &) = delete;
    pool_resource &operator=(const pool_resource &) = delete;
    ~pool_resource() override { overspill_close(pool); }

    std::uint64_t counter(const char *name) const {
        std::uint64_t value = 0;
        check(overspill_stats(pool, name, &value));
        return value;
    }

private:
    void *do_allocate(std::size_t bytes, std::size_t alignment) override {
        constexpr std::size_t page = 4096;
        void *address = nullptr;
        if (alignment > page || overspill_map(pool, std::max<std::size_t>(bytes, 1), &address))
            throw std::bad_alloc();
        return address;
    }
    void do_deallocate(void *address, std::size_t, std::size_t) override {
        overspill_unmap(pool, address);
    }
    bool do_is_equal(const std::pmr::memory_resource &other) const noexcept override {
        return this == &other;
    }

    overspill_pool *pool = nullptr;
};

}  // namespace overspill

static void run(std::size_t mib, const char *swap) {
    overspill_options options = OVERSPILL_OPTIONS_INIT;
    options.memory = std::uint64_t{mib} << 20;
    options.swap = swap;
    overspill::pool_resource pool(options);

    // 1. One large block: three times the budget, sorted.
    std::pmr::vector<std::uint64_t> values(3 * options.memory / sizeof(std::uint64_t), &pool);
    for (std::uint64_t i = 0; i < values.size(); i++) values[i] = i * 0x9E3779B97F4A7C15u;
    std::sort(values.begin(), values.end());
    if (!std::is_sorted(values.begin(), values.end())) throw std::runtime_error("it is not sorted");

    // 2. Many small ones, in blocks of a resource of the standard library's.
    std::pmr::synchronized_pool_resource small(&pool);
    std::pmr::unordered_map<std::uint64_t, std::pmr::string> names(&small);
    const std::uint64_t count = options.memory / 100;
    for (std::uint64_t i = 0; i < count; i++)
        names[i] = "the name of what has the number " + std::to_string(i);
    for (std::uint64_t i = 0; i < count; i++)
        if (names.at(i) != ("the name of what has the number " + std::to_string(i)).c_str())
            throw std::runtime_error("a name is another");

    if (pool.counter("charged_peak_bytes") > options.memory)
        throw std::runtime_error("it took more than the budget");
    std::printf("%zu values sorted and %zu names found in %zu MiB\n", values.size(), names.size(),
                mib);
}

int main(int argc, char **argv) {
    try {
        run(argc > 1 ? std::strtoul(argv[1], nullptr, 10) : 64, argc > 2 ? argv[2] : "/var/tmp");
    } catch (const std::exception &error) {
        std::fprintf(stderr, "%s\n", error.what());
        return 1;
    }
}
