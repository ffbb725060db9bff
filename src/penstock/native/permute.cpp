// The keyed permutation behind the orders of `base/_random.py`. `permute_now` in `_numpy.py` is its definition.
#include "core.hpp"

#include <algorithm>

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

} // namespace

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
