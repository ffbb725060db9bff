// NumPy's `astype(casting="unsafe")`, bit for bit.
//
// A float outside of an integer's range has no value in C. NumPy's compiled loops give what the processor gives, and so
// do these: on x86 through the instructions that truncate, elsewhere through C's cast. The tests compare every pair.
#include "core.hpp"

#include <cstring>
#include <type_traits>

namespace penstock {
namespace {

struct Half {
    uint16_t bits;
};
template <class T> struct Complex {
    T real, imag;
};
struct Bool {
    uint8_t value;
};

template <class T> struct is_complex : std::false_type {};
template <class T> struct is_complex<Complex<T>> : std::true_type {};

float half_to_float(uint16_t half) {
    uint32_t sign = static_cast<uint32_t>(half & 0x8000u) << 16, exponent = half & 0x7c00u, fraction = half & 0x03ffu;
    uint32_t bits;
    if (exponent == 0x7c00u) {
        bits = sign | 0x7f800000u | (fraction << 13);
    } else if (exponent != 0) {
        bits = sign | (((static_cast<uint32_t>(half & 0x7fffu)) << 13) + 0x38000000u);
    } else if (fraction == 0) {
        bits = sign;
    } else { // subnormal: shift until the leading one is where the exponent says it is
        int shift = __builtin_clz(fraction) - 21;
        bits = sign | ((static_cast<uint32_t>(113 - shift)) << 23) | (((fraction << shift) & 0x3ffu) << 13);
    }
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}

// Not through float, whose conversion would change the bits of a signalling NaN.
double half_to_double(uint16_t half) {
    if ((half & 0x7c00u) != 0x7c00u) {
        return half_to_float(half);
    }
    uint64_t bits = static_cast<uint64_t>(half & 0x8000u) << 48 | UINT64_C(0x7ff) << 52 |
                    static_cast<uint64_t>(half & 0x03ffu) << 42;
    double value;
    std::memcpy(&value, &bits, 8);
    return value;
}

// Rounds a float or double to the nearest half, ties to even. `Bits` is its unsigned integer.
template <class Bits, int FRACTION, int BIAS> uint16_t to_half(Bits bits) {
    constexpr int WIDTH = sizeof(Bits) * 8;
    uint16_t sign = static_cast<uint16_t>(bits >> (WIDTH - 16)) & 0x8000u;
    Bits magnitude = bits & ~(static_cast<Bits>(1) << (WIDTH - 1));
    constexpr Bits INFINITE = ((static_cast<Bits>(1) << (WIDTH - 1 - FRACTION)) - 1) << FRACTION;
    if (magnitude >= INFINITE) {
        if (magnitude == INFINITE) {
            return sign | 0x7c00u;
        }
        uint16_t payload = static_cast<uint16_t>((magnitude >> (FRACTION - 10)) & 0x3ffu);
        return sign | 0x7c00u | (payload != 0 ? payload : 1); // a NaN stays one
    }
    int exponent = static_cast<int>(magnitude >> FRACTION) - BIAS;
    if (exponent > 15) {
        return sign | 0x7c00u;
    }
    Bits fraction = magnitude & ((static_cast<Bits>(1) << FRACTION) - 1);
    if (exponent < -25) {
        return sign;
    }
    int shift = FRACTION - 10;
    uint32_t high;
    if (exponent < -14) { // a subnormal half
        fraction |= static_cast<Bits>(1) << FRACTION;
        shift += -14 - exponent;
        high = 0;
    } else {
        high = static_cast<uint32_t>(exponent + 15) << 10;
    }
    Bits kept = fraction >> shift, rest = fraction & ((static_cast<Bits>(1) << shift) - 1),
         half = static_cast<Bits>(1) << (shift - 1);
    uint32_t result = high + static_cast<uint32_t>(kept);
    if (rest > half || (rest == half && (kept & 1))) {
        result += 1; // may carry into the exponent, up to infinity
    }
    return sign | static_cast<uint16_t>(result);
}

uint16_t float_to_half(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, 4);
    return to_half<uint32_t, 23, 127>(bits);
}

uint16_t double_to_half(double value) {
    uint64_t bits;
    std::memcpy(&bits, &value, 8);
    return to_half<uint64_t, 52, 1023>(bits);
}

#if defined(__clang__)
#define UNCHECKED_CAST __attribute__((no_sanitize("float-cast-overflow")))
#else
#define UNCHECKED_CAST __attribute__((no_sanitize_undefined))
#endif

template <class Out, class In> UNCHECKED_CAST inline Out cast(In value) {
    if constexpr (std::is_same_v<In, Half>) {
        if constexpr (std::is_same_v<Out, Half>) {
            return value;
        } else if constexpr (std::is_same_v<Out, Bool>) {
            return Bool{(value.bits & 0x7fffu) != 0};
        } else if constexpr (std::is_same_v<Out, double>) {
            return half_to_double(value.bits);
        } else if constexpr (std::is_same_v<Out, Complex<double>>) {
            return Out{half_to_double(value.bits), 0};
        } else {
            return cast<Out>(half_to_float(value.bits));
        }
    } else if constexpr (is_complex<In>::value) {
        if constexpr (is_complex<Out>::value) {
            using Part = decltype(Out::real);
            return Out{static_cast<Part>(value.real), static_cast<Part>(value.imag)};
        } else if constexpr (std::is_same_v<Out, Bool>) {
            return Bool{value.real != 0 || value.imag != 0};
        } else {
            return cast<Out>(value.real);
        }
    } else if constexpr (std::is_same_v<In, Bool>) {
        return cast<Out>(static_cast<uint8_t>(value.value != 0));
    } else if constexpr (std::is_same_v<Out, Half>) {
        if constexpr (std::is_same_v<In, double>) {
            return Half{double_to_half(value)};
        } else {
            return Half{float_to_half(static_cast<float>(value))};
        }
    } else if constexpr (std::is_same_v<Out, Bool>) {
        return Bool{value != 0};
    } else if constexpr (is_complex<Out>::value) {
        return Out{static_cast<decltype(Out::real)>(value), 0};
    } else if constexpr (std::is_same_v<Out, uint32_t> && std::is_floating_point_v<In>) {
        // Compiled for several numbers at a time the direct cast has another result for numbers out of range, in NumPy
        // as well: there it depends on an element's place.
        return static_cast<uint32_t>(static_cast<int64_t>(value));
    } else {
        return static_cast<Out>(value);
    }
}

template <class In, class Out> UNCHECKED_CAST void run(const uint8_t *source, uint8_t *out, int64_t count) {
    for (int64_t i = 0; i < count; i++) {
        In value;
        std::memcpy(&value, source + i * sizeof(In), sizeof(In)); // files have no alignment
        Out result = cast<Out>(value);
        std::memcpy(out + i * sizeof(Out), &result, sizeof(Out));
    }
}

template <class In> constexpr ConvertFunction row(int out) {
    constexpr ConvertFunction FUNCTIONS[KIND_COUNT] = {
        run<In, Bool>,    run<In, int8_t>,   run<In, int16_t>,        run<In, int32_t>,         run<In, int64_t>,
        run<In, uint8_t>, run<In, uint16_t>, run<In, uint32_t>,       run<In, uint64_t>,        run<In, Half>,
        run<In, float>,   run<In, double>,   run<In, Complex<float>>, run<In, Complex<double>>,
    };
    return FUNCTIONS[out];
}

ConvertFunction function_of(int source, int out) {
    switch (source) {
    case B1: return row<Bool>(out);
    case I1: return row<int8_t>(out);
    case I2: return row<int16_t>(out);
    case I4: return row<int32_t>(out);
    case I8: return row<int64_t>(out);
    case U1: return row<uint8_t>(out);
    case U2: return row<uint16_t>(out);
    case U4: return row<uint32_t>(out);
    case U8: return row<uint64_t>(out);
    case F2: return row<Half>(out);
    case F4: return row<float>(out);
    case F8: return row<double>(out);
    case C8: return row<Complex<float>>(out);
    default: return row<Complex<double>>(out);
    }
}

constexpr int NBYTES[KIND_COUNT] = {1, 1, 2, 4, 8, 1, 2, 4, 8, 2, 4, 8, 8, 16};

int swapped_nbytes(int kind) { return kind == C8 ? 4 : kind == C16 ? 8 : NBYTES[kind]; }

// Reverses the bytes of each number. `source` and `out` may be the same.
void swap_bytes(const uint8_t *source, uint8_t *out, int64_t nbytes, int width) {
    for (int64_t i = 0; i < nbytes; i += width) {
        if (width == 2) {
            uint16_t value;
            std::memcpy(&value, source + i, 2);
            value = __builtin_bswap16(value);
            std::memcpy(out + i, &value, 2);
        } else if (width == 4) {
            uint32_t value;
            std::memcpy(&value, source + i, 4);
            value = __builtin_bswap32(value);
            std::memcpy(out + i, &value, 4);
        } else {
            uint64_t value;
            std::memcpy(&value, source + i, 8);
            value = __builtin_bswap64(value);
            std::memcpy(out + i, &value, 8);
        }
    }
}

} // namespace

bool find_conversion(long code, Conversion *found) {
    // See `conversion` in `_dtypes.py`: the two types plus one, four bits each, and which of the two is swapped.
    int source = static_cast<int>(code & 15) - 1, out = static_cast<int>(code >> 4 & 15) - 1;
    if (code <= 0 || code >> 10 != 0 || source < 0 || source >= KIND_COUNT || out < 0 || out >= KIND_COUNT) {
        return false;
    }
    found->source_nbytes = NBYTES[source];
    found->out_nbytes = NBYTES[out];
    found->source_swap = (code & 256) && swapped_nbytes(source) > 1 ? swapped_nbytes(source) : 0;
    found->out_swap = (code & 512) && swapped_nbytes(out) > 1 ? swapped_nbytes(out) : 0;
    found->function = source == out ? nullptr : function_of(source, out);
    if (source == out && (found->source_swap != 0) == (found->out_swap != 0)) {
        found->source_swap = found->out_swap = 0;
    }
    found->is_plain = source == out && found->source_swap == 0 && found->out_swap == 0;
    return true;
}

void convert(const Conversion &conversion, const uint8_t *source, uint8_t *out, int64_t count) {
    if (conversion.function == nullptr) {
        int width = conversion.source_swap + conversion.out_swap;
        swap_bytes(source, out, count * conversion.source_nbytes, width);
        return;
    }
    if (conversion.source_swap == 0 && conversion.out_swap == 0) {
        conversion.function(source, out, count);
        return;
    }
    constexpr int64_t BLOCK = 256;
    uint8_t block[BLOCK * 16];
    for (int64_t i = 0; i < count; i += BLOCK) {
        int64_t n = count - i < BLOCK ? count - i : BLOCK;
        const uint8_t *from = source + i * conversion.source_nbytes;
        uint8_t *to = out + i * conversion.out_nbytes;
        if (conversion.source_swap != 0) {
            swap_bytes(from, block, n * conversion.source_nbytes, conversion.source_swap);
            from = block;
        }
        conversion.function(from, to, n);
        if (conversion.out_swap != 0) {
            swap_bytes(to, to, n * conversion.out_nbytes, conversion.out_swap);
        }
    }
}

} // namespace penstock
