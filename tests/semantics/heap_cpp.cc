// C++ programs: new and delete in all their forms, containers, exceptions, threads that free what
// others made.
#include "common.h"
#include <algorithm>
#include <atomic>
#include <deque>
#include <map>
#include <memory>
#include <memory_resource>
#include <mutex>
#include <new>
#include <numeric>
#include <stdexcept>
#include <string>
#include <thread>
#include <unordered_map>
#include <vector>

namespace {

struct Counted {
    static long alive;
    uint64_t value;
    std::unique_ptr<char[]> ballast;

    explicit Counted(uint64_t v = 0) : value(v), ballast(new char[1000])
    {
        stamp(ballast.get(), 1000, value);
        alive++;
    }
    ~Counted()
    {
        if (!stamped(ballast.get(), 1000, value))
            _exit(97);
        alive--;
    }
    Counted(const Counted &) = delete;
    Counted &operator=(const Counted &) = delete;
};
long Counted::alive;

struct alignas(4096) Page {
    char bytes[4096];
};

volatile size_t absurd = PTRDIFF_MAX;

void objects()
{
    std::vector<std::unique_ptr<Counted>> many;
    for (uint64_t i = 0; i < 30000; i++)
        many.push_back(std::make_unique<Counted>(i));
    pressure(32);
    check(Counted::alive == 30000, "%ld objects live", Counted::alive);
    for (size_t i = 0; i < many.size(); i += 2)
        many[i].reset();
    pressure(32);
    size_t wrong = 0;
    for (size_t i = 1; i < many.size(); i += 2)
        wrong += many[i]->value != i;
    check(wrong == 0 && Counted::alive == 15000, "half of them live");
    many.clear();
    Counted *array = new Counted[5000];
    check(Counted::alive == 5000, "an array of objects");
    delete[] array;
    check(Counted::alive == 0, "all destroyed");

    std::vector<Page *> pages;
    bool aligned = true;
    for (uint64_t i = 0; i < 3000; i++) {
        pages.push_back(new Page);
        aligned &= reinterpret_cast<uintptr_t>(pages.back()) % 4096 == 0;
        fill_page(pages.back(), i);
    }
    pressure(32);
    wrong = 0;
    for (uint64_t i = 0; i < pages.size(); i++) {
        wrong += !page_is(pages[i], i);
        delete pages[i];
    }
    check(aligned && wrong == 0, "over-aligned objects");
    void *raw = operator new(1 << 20), *over = operator new(1 << 20, std::align_val_t(1 << 16));
    stamp(raw, 1 << 20, 1);
    stamp(over, 1 << 20, 2);
    check(reinterpret_cast<uintptr_t>(over) % (1 << 16) == 0, "operator new with an alignment");
    pressure(32);
    check(stamped(raw, 1 << 20, 1) && stamped(over, 1 << 20, 2), "keeps content");
    operator delete(raw, size_t(1 << 20));
    operator delete(over, size_t(1 << 20), std::align_val_t(1 << 16));
    delete static_cast<char *>(nullptr);
}

void failures_to_allocate()
{
    bool thrown = false;
    try {
        char *p = new char[absurd];
        check(p == nullptr, "new of PTRDIFF_MAX bytes gave memory");
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    check(thrown, "new of PTRDIFF_MAX bytes throws bad_alloc");
    check(new (std::nothrow) char[absurd] == nullptr, "new (nothrow) of as much gives nullptr");
    thrown = false;
    try {
        std::string s(absurd - 1000, 'x');
        check(s.empty(), "a string of nearly PTRDIFF_MAX bytes was made");
    } catch (const std::bad_alloc &) {
        thrown = true;
    } catch (const std::length_error &) {
        thrown = true;
    }
    check(thrown, "a string of nearly PTRDIFF_MAX bytes throws");
    static int calls;
    calls = 0;
    std::set_new_handler([] {
        if (++calls == 3)
            std::set_new_handler(nullptr);
    });
    thrown = false;
    try {
        char *volatile p = new char[absurd];
        delete[] p;
    } catch (const std::bad_alloc &) {
        thrown = true;
    }
    check(thrown && calls == 3, "the new handler is called: %d times", calls);
}

void containers()
{
    std::vector<uint64_t> numbers;
    for (uint64_t i = 0; i < 3000000; i++)
        numbers.push_back(mix(i));
    std::sort(numbers.begin(), numbers.end());
    check(std::is_sorted(numbers.begin(), numbers.end()), "a vector of 24 MB, sorted: %016llx",
          static_cast<unsigned long long>(
              std::accumulate(numbers.begin(), numbers.end(), uint64_t(0))));
    std::map<std::string, std::string> tree;
    std::unordered_map<uint64_t, std::string> table;
    for (uint64_t i = 0; i < 40000; i++) {
        tree["key " + std::to_string(mix(i))] =
            std::string(300 + i % 200, static_cast<char>('a' + i % 26));
        table[mix(i)] = std::to_string(i);
    }
    pressure(32);
    size_t wrong = 0;
    for (uint64_t i = 0; i < 40000; i++) {
        auto found = tree.find("key " + std::to_string(mix(i)));
        wrong += found == tree.end() || found->second.size() != 300 + i % 200 ||
                 found->second.back() != static_cast<char>('a' + i % 26);
        wrong += table[mix(i)] != std::to_string(i);
    }
    check(wrong == 0 && tree.size() == 40000 && table.size() == 40000,
          "a tree and a hash table of strings");
    std::deque<std::shared_ptr<std::vector<char>>> queue;
    for (int i = 0; i < 20000; i++) {
        queue.push_back(std::make_shared<std::vector<char>>(2000, static_cast<char>(i)));
        if (queue.size() > 8000) {
            wrong += queue.front()->front() != queue.front()->back();
            queue.pop_front();
        }
    }
    check(wrong == 0 && queue.size() == 8000, "a queue of shared vectors");
    std::pmr::monotonic_buffer_resource arena;
    std::pmr::vector<std::pmr::string> strings(&arena);
    for (int i = 0; i < 50000; i++)
        strings.emplace_back(std::pmr::string(200, static_cast<char>('a' + i % 26)));
    check(strings[49999][199] == 'a' + 49999 % 26, "an arena of strings");
}

// Frames on the way hold evicted memory that their destructors look at.
void thrower(int depth)
{
    Counted here(static_cast<uint64_t>(depth));
    if (depth == 0) {
        pressure(24);
        throw std::runtime_error(std::string(100000, 'e'));
    }
    thrower(depth - 1);
}

void exceptions()
{
    int caught = 0;
    for (int i = 0; i < 4; i++)
        try {
            thrower(200);
        } catch (const std::runtime_error &error) {
            caught += strlen(error.what()) == 100000;
        }
    check(caught == 4 && Counted::alive == 0, "exceptions through 200 frames");
}

void threads()
{
    std::mutex mutex;
    std::vector<std::pair<char *, uint64_t>> exchange;
    std::vector<std::thread> all;
    std::atomic<int> wrong{0};
    for (uint64_t t = 0; t < 8; t++)
        all.emplace_back([&, t] {
            for (uint64_t i = 0; i < 3000; i++) {
                uint64_t seed = t * 1000000 + i;
                size_t size = 1 + mix(seed) % 8000;
                char *p = new char[size + 8];
                memcpy(p, &size, 8);
                stamp(p + 8, size, seed);
                std::pair<char *, uint64_t> other{nullptr, 0};
                {
                    std::lock_guard<std::mutex> guard(mutex);
                    exchange.emplace_back(p, seed);
                    if (exchange.size() > 6000) {
                        size_t at = mix(seed + 1) % exchange.size();
                        other = exchange[at];
                        exchange[at] = exchange.back();
                        exchange.pop_back();
                    }
                }
                if (other.first) {
                    memcpy(&size, other.first, 8);
                    wrong += !stamped(other.first + 8, size, other.second);
                    delete[] other.first;
                }
            }
        });
    for (auto &thread : all)
        thread.join();
    for (auto &entry : exchange) {
        size_t size;
        memcpy(&size, entry.first, 8);
        wrong += !stamped(entry.first + 8, size, entry.second);
        delete[] entry.first;
    }
    check(wrong == 0, "threads delete what others made: %d wrong", wrong.load());
}

} // namespace

int main()
{
    objects();
    failures_to_allocate();
    containers();
    exceptions();
    threads();
    return finish();
}
