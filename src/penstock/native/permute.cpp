// The permutations behind the orders of `base/_random.py`: a keyed one, and the order of random words. `permute_now`
// and `deal` in `_numpy.py` are their definitions.
#include "core.hpp"

#include <algorithm>
#include <iterator>
#include <numeric>
#include <vector>

namespace penstock {
namespace {

constexpr uint64_t ODD = 0xD6E8FEB86659FD93;
// Values that go through a round together, so that the processor overlaps their multiplications.
constexpr int64_t GROUP = 64;

// Compiled for several processors. The loader of glibc chooses the best: AVX-512 has products of 64-bit vectors.
#if defined(__x86_64__) && defined(__GLIBC__) && !defined(__clang__) && !defined(__SANITIZE_ADDRESS__) &&              \
    !defined(__SANITIZE_THREAD__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

template <int64_t COUNT>
[[gnu::always_inline]] inline void permute_values(uint64_t *values, const Permutation &key, const uint64_t *tweaks) {
    uint64_t left[COUNT], right[COUNT];
    const double inverse = 1.0 / static_cast<double>(key.b);
    const auto divisor = static_cast<int64_t>(key.b);
    for (int64_t i = 0; i < COUNT; i++) { // vectors have no division; values are below 2**62, quotients below 2**31
        const auto value = static_cast<int64_t>(values[i]);
        auto quotient = static_cast<int64_t>(static_cast<double>(value) * inverse);
        const int64_t rest = value - quotient * divisor;
        quotient += (rest >= divisor) - (rest < 0);
        left[i] = quotient;
        right[i] = value - quotient * divisor;
    }
    uint64_t *from = right, *to = left;
    for (size_t round = 0; round < key.rounds; round++) {
        const uint64_t factor = key.words[2 * round], addend = key.words[2 * round + 1];
        const uint64_t modulus = round % 2 == 0 ? key.a : key.b;
        for (int64_t i = 0; i < COUNT; i++) {
            uint64_t hash = from[i] * factor + (tweaks[i] * factor + addend);
            hash = ((hash ^ hash >> 32) * ODD >> 32) * modulus >> 32;
            const uint64_t sum = to[i] + hash;
            to[i] = std::min(sum, sum - modulus); // below zero it is huge
        }
        std::swap(from, to);
    }
    for (int64_t i = 0; i < COUNT; i++) {
        values[i] = left[i] * key.b + right[i];
    }
}

FOR_EACH_PROCESSOR
void permute_group(uint64_t *values, const Permutation &key, const uint64_t *tweaks) {
    permute_values<GROUP>(values, key, tweaks);
}

// Writes the first words of NumPy's generator Philox, four at a time: there is room for three more than `count`.
void draw(const uint64_t *key, uint64_t *words, int64_t count) {
    for (int64_t i = 0; i < count; i += 4) {
        uint64_t a = i / 4 + 1, b = 0, c = 0, d = 0, first = key[0], second = key[1];
        for (int round = 0; round < 10; round++) {
            const auto left = static_cast<unsigned __int128>(a) * 0xD2E7470EE14C6C93;
            const auto right = static_cast<unsigned __int128>(c) * 0xCA5A826395121157;
            a = static_cast<uint64_t>(right >> 64) ^ b ^ first;
            b = static_cast<uint64_t>(right);
            c = static_cast<uint64_t>(left >> 64) ^ d ^ second;
            d = static_cast<uint64_t>(left);
            first += 0x9E3779B97F4A7C15;
            second += 0xBB67AE8584CAA73B;
        }
        words[i] = a;
        words[i + 1] = b;
        words[i + 2] = c;
        words[i + 3] = d;
    }
}

} // namespace

void deal_cards(const uint64_t *keys, int64_t *places, int64_t count, const int64_t *ends, int64_t kind_count,
                int64_t *before) {
    constexpr int BITS = 10; // words are even, so about one of 1,024 cards begins with each of so many bits
    const int64_t size = ends[kind_count - 1];
    std::vector<uint64_t> words(size + 3);
    std::vector<uint32_t> cards(size);
    uint32_t firsts[(1 << BITS) + 1]; // of cards by the first bits of their words
    auto digit = [&](int64_t card) { return words[card] >> (64 - BITS); };
    auto is_less = [&](uint32_t a, uint32_t b) { return words[a] != words[b] ? words[a] < words[b] : a < b; };
    for (int64_t i = 0; i < count; i++) {
        if (i == 0 || keys[2 * i] != keys[2 * i - 2] || keys[2 * i + 1] != keys[2 * i - 1]) {
            draw(keys + 2 * i, words.data(), size);
            std::fill(firsts, std::end(firsts), 0);
            for (int64_t card = 0; card < size; card++) {
                firsts[digit(card)]++;
            }
            std::partial_sum(firsts, std::end(firsts), firsts);
            for (int64_t card = 0; card < size; card++) {
                cards[--firsts[digit(card)]] = card;
            }
        }
        const int64_t place = places[i];
        const uint32_t *next = std::upper_bound(firsts, std::end(firsts), place);
        const auto wanted = cards.begin() + place;
        std::nth_element(cards.begin() + next[-1], wanted, cards.begin() + *next, is_less);
        const int64_t kind = std::upper_bound(ends, ends + kind_count, *wanted) - ends;
        before[i] = 0;
        for (int64_t card = kind > 0 ? ends[kind - 1] : 0; card < ends[kind]; card++) {
            before[i] += is_less(card, *wanted);
        }
        places[i] = kind;
    }
}

void permute(uint64_t *values, int64_t count, const Permutation &key, const uint64_t *tweaks, bool is_one) {
    uint64_t group[GROUP] = {}, tweak[GROUP];
    std::fill(tweak, tweak + GROUP, tweaks[0]);
    for (int64_t begin = 0; begin < count; begin += GROUP) {
        const int64_t size = std::min(GROUP, count - begin);
        std::copy(values + begin, values + begin + size, group);
        if (!is_one) {
            std::copy(tweaks + begin, tweaks + begin + size, tweak);
        }
        permute_group(group, key, tweak);
        for (int64_t i = 0; i < size; i++) {
            while (group[i] >= key.n) { // it left the range, and walks until it is back
                permute_values<1>(group + i, key, tweak + i);
            }
        }
        std::copy(group, group + size, values + begin);
    }
}

} // namespace penstock
