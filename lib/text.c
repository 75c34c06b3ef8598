/* Short texts: bounded building, strict parsing, comparing. Nothing here looks at the locale. */
#include "common.h"

const char *ftmem_version_string(void)
{
    return FTMEM_VERSION_STRING;
}

/* ------------------------------------------------------------------------------------------------- building */

void ftmem__put(ftmem__text *text, const char *part)
{
    size_t length = strlen(part);
    if (text->needed < text->capacity) {
        size_t room = text->capacity - 1 - text->needed;
        size_t taken = length < room ? length : room;
        memcpy(text->at + text->needed, part, taken);
        text->at[text->needed + taken] = '\0';
    }
    text->needed += length;
}

/* At least `width` digits: the fraction of a number needs its leading zeros. */
static void text_put_digits(ftmem__text *text, uint64_t value, int width)
{
    char digits[24];
    int at = (int)sizeof digits - 1;
    digits[at] = '\0';
    do {
        digits[--at] = (char)('0' + (int)(value % 10));
        value /= 10;
        --width;
    } while (value > 0 || width > 0);
    ftmem__put(text, digits + at);
}

void ftmem__put_int(ftmem__text *text, int64_t value)
{
    if (value < 0) ftmem__put(text, "-");
    text_put_digits(text, value < 0 ? 0 - (uint64_t)value : (uint64_t)value, 1);
}

static const double text_powers[] = { 1e0,  1e1,  1e2,  1e3,  1e4,  1e5,  1e6,  1e7,  1e8,  1e9,  1e10, 1e11,
                                      1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20, 1e21, 1e22 };

/* A value from 0 below 1e15 keeps every digit of `decimals` only as long as the whole stays below 2^63. */
static void text_put_fixed(ftmem__text *text, double value, int decimals)
{
    if (decimals < 0) decimals = 0;
    while (decimals > 9 || (decimals > 0 && value * text_powers[decimals] >= 9e18)) --decimals;
    uint64_t scale = (uint64_t)text_powers[decimals];
    uint64_t scaled = (uint64_t)(value * text_powers[decimals] + 0.5);
    text_put_digits(text, scaled / scale, 1);
    if (decimals == 0) return;
    ftmem__put(text, ".");
    text_put_digits(text, scaled % scale, decimals);
}

/* Zeros at the end of a fraction say nothing. */
static void text_put_trimmed(ftmem__text *text, double value, int decimals)
{
    char digits[48];
    ftmem__text own = ftmem__text_in(digits, sizeof digits);
    text_put_fixed(&own, value, decimals);
    size_t length = strlen(digits);
    while (decimals > 0 && length > 1 && digits[length - 1] == '0') digits[--length] = '\0';
    if (digits[length - 1] == '.') digits[length - 1] = '\0';
    ftmem__put(text, digits);
}

static void text_put_scientific(ftmem__text *text, double value, int decimals)
{
    int exponent = 0;
    for (; value >= 10; ++exponent) value /= 10;
    for (; value < 1; --exponent) value *= 10;
    text_put_trimmed(text, value, decimals);
    ftmem__put(text, exponent < 0 ? "e-" : "e+");
    text_put_digits(text, (uint64_t)(exponent < 0 ? -exponent : exponent), 2);
}

/* Puts the sign; true if what is left is a finite magnitude to be written. */
static bool text_put_sign(ftmem__text *text, double *value)
{
    if (*value != *value) {
        ftmem__put(text, "nan");
        return false;
    }
    if (*value < 0) {
        ftmem__put(text, "-");
        *value = -*value;
    }
    if (*value > 1.7976931348623157e308) ftmem__put(text, "inf");
    return *value <= 1.7976931348623157e308;
}

void ftmem__put_real(ftmem__text *text, double value, int decimals)
{
    if (!text_put_sign(text, &value)) return;
    if (value >= 1e15) text_put_scientific(text, value, decimals);
    else text_put_fixed(text, value, decimals);
}

void ftmem__put_number(ftmem__text *text, double value)
{
    if (!text_put_sign(text, &value)) return;
    if (value > 0 && (value < 1e-4 || value >= 1e16)) {
        text_put_scientific(text, value, 8);
        return;
    }
    int decimals = 8; /* nine digits in all */
    for (double top = 10; top <= value && decimals > 0; top *= 10) --decimals;
    text_put_trimmed(text, value, decimals);
}

/* --------------------------------------------------------------------------------------------------- copying */

/* How many of the first `length` bytes are whole UTF-8 characters: a cut one would make the text undecodable. */
static size_t text_whole(const char *bytes, size_t length)
{
    size_t lead = length;
    while (lead > 0 && length - lead < 3 && ((unsigned char)bytes[lead - 1] & 0xc0u) == 0x80u) --lead;
    if (lead == 0) return length;
    unsigned first = (unsigned char)bytes[lead - 1];
    size_t wants = first >= 0xf0u ? 4 : first >= 0xe0u ? 3 : first >= 0xc0u ? 2 : 1;
    return length - (lead - 1) < wants ? lead - 1 : length;
}

void ftmem__copy(char *to, size_t capacity, const char *from)
{
    static const char dots[] = "...";
    size_t length = strlen(from), room = capacity - 1;
    bool cut = length > room;
    if (cut) length = room < sizeof dots ? room : room - (sizeof dots - 1);
    length = text_whole(from, length);
    memmove(to, from, length);
    to[length] = '\0';
    if (cut && room - length >= sizeof dots - 1) memcpy(to + length, dots, sizeof dots);
    for (; *to; ++to)
        if ((unsigned char)*to < 0x20u || *to == 0x7f) *to = '?';
}

/* --------------------------------------------------------------------------------------------------- parsing */

/* A decimal number as written: digits x 10^exponent, `lost` when there were more digits than 64 bits hold. */
typedef struct text_number {
    bool negative, lost;
    int digit_count;
    uint64_t digits;
    int32_t exponent;
} text_number;

static bool text_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

static void text_take_digit(text_number *number, char c, bool fraction)
{
    uint64_t digit = (uint64_t)(c - '0');
    ++number->digit_count;
    if (number->digits > (UINT64_MAX - digit) / 10) {
        number->lost = true;
        if (!fraction && number->exponent < 9999) ++number->exponent;
        return;
    }
    number->digits = number->digits * 10 + digit;
    if (fraction && number->exponent > -9999) --number->exponent;
}

/* Digits, with an underscore allowed between two of them. */
static const char *text_scan_digits(const char *at, text_number *number, bool fraction)
{
    while (text_is_digit(*at)) {
        text_take_digit(number, *at++, fraction);
        if (*at == '_' && text_is_digit(at[1])) ++at;
    }
    return at;
}

static const char *text_scan_exponent(const char *at, text_number *number)
{
    if (*at != 'e' && *at != 'E') return at;
    ++at;
    bool negative = *at == '-';
    if (*at == '-' || *at == '+') ++at;
    if (!text_is_digit(*at)) return NULL;
    int32_t exponent = 0;
    for (; text_is_digit(*at); ++at)
        if (exponent < 9999) exponent = exponent * 10 + (*at - '0');
    number->exponent += negative ? -exponent : exponent;
    return at;
}

static bool text_scan(const char *at, text_number *number)
{
    memset(number, 0, sizeof *number);
    number->negative = *at == '-';
    if (*at == '-' || *at == '+') ++at;
    at = text_scan_digits(at, number, false);
    if (*at == '.') at = text_scan_digits(at + 1, number, true);
    if (number->digit_count == 0) return false;
    at = text_scan_exponent(at, number);
    return at && *at == '\0';
}

/* digits x 10^exponent if that is whole and fits in 64 bits. */
static bool text_whole_number(text_number *number)
{
    if (number->digits == 0) return !number->lost;
    for (; number->exponent > 0; --number->exponent) {
        if (number->digits > UINT64_MAX / 10) return false;
        number->digits *= 10;
    }
    for (; number->exponent < 0; ++number->exponent) {
        if (number->digits % 10 != 0) return false;
        number->digits /= 10;
    }
    return !number->lost;
}

bool ftmem__parse_int(const char *text, int64_t *value)
{
    text_number number;
    if (!text_scan(text, &number) || !text_whole_number(&number)) return false;
    uint64_t limit = (uint64_t)INT64_MAX + (number.negative ? 1u : 0u);
    if (number.digits > limit) return false;
    if (!number.negative) *value = (int64_t)number.digits;
    else *value = number.digits > (uint64_t)INT64_MAX ? INT64_MIN : -(int64_t)number.digits;
    return true;
}

/* Exact whenever digits fit in 53 bits and the exponent is at most 22, which is what people write. */
static double text_scale(double value, int32_t exponent)
{
    for (; exponent > 22 && value <= 1.7976931348623157e308; exponent -= 22) value *= 1e22;
    for (; exponent < -22 && value > 0; exponent += 22) value /= 1e22;
    if (exponent > 22 || exponent < -22) return value;
    return exponent < 0 ? value / text_powers[-exponent] : value * text_powers[exponent];
}

bool ftmem__parse_real(const char *text, double *value)
{
    text_number number;
    if (!text_scan(text, &number)) return false;
    double magnitude = text_scale((double)number.digits, number.digits ? number.exponent : 0);
    if (!(magnitude <= 1.7976931348623157e308)) return false;
    *value = number.negative ? -magnitude : magnitude;
    return true;
}

/* ------------------------------------------------------------------------------------------------- comparing */

static char text_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

/* People write "gpt-neox", "gpt_neox" and "may fit" for the same thing. */
static char text_fold(char c)
{
    return c == '-' || c == ' ' ? '_' : text_lower(c);
}

bool ftmem__same(const char *a, const char *b)
{
    while (*a && text_lower(*a) == text_lower(*b)) ++a, ++b;
    return text_lower(*a) == text_lower(*b);
}

bool ftmem__alike(const char *a, const char *b)
{
    while (*a && text_fold(*a) == text_fold(*b)) ++a, ++b;
    return text_fold(*a) == text_fold(*b);
}

#define TEXT_COMPARED 48 /* characters of a name that are compared; longer ones differ enough by then */

static int32_t text_min3(int32_t a, int32_t b, int32_t c)
{
    int32_t least = a < b ? a : b;
    return least < c ? least : c;
}

static int32_t text_length(const char *text)
{
    int32_t length = 0;
    while (length < TEXT_COMPARED && text[length]) ++length;
    return length;
}

static int32_t text_edits(const char *a, int32_t a_length, const char *b, int32_t b_length)
{
    int32_t row[TEXT_COMPARED + 1];
    for (int32_t j = 0; j <= b_length; ++j) row[j] = j;
    for (int32_t i = 1; i <= a_length; ++i) {
        int32_t diagonal = row[0];
        row[0] = i;
        for (int32_t j = 1; j <= b_length; ++j) {
            int32_t swap = diagonal + (text_fold(a[i - 1]) == text_fold(b[j - 1]) ? 0 : 1);
            diagonal = row[j];
            row[j] = text_min3(swap, row[j] + 1, row[j - 1] + 1);
        }
    }
    return row[b_length];
}

static bool text_contains(const char *name, const char *part)
{
    for (; *name; ++name) {
        size_t i = 0;
        while (part[i] && text_fold(name[i]) == text_fold(part[i])) ++i;
        if (!part[i]) return true;
    }
    return false;
}

int32_t ftmem__distance(const char *typed, const char *name)
{
    int32_t typed_length = text_length(typed), name_length = text_length(name);
    int32_t edits = text_edits(typed, typed_length, name, name_length);
    if (typed_length < 3 || !text_contains(name, typed)) return edits;
    int32_t rest = (name_length - typed_length) / 8; /* "llama" is nearer to "meta-llama/Llama-3.1-8B" than to "olmo" */
    return edits < 1 + rest ? edits : 1 + rest;
}

/* ------------------------------------------------------------------------------------------------------- GiB */

static int text_gib_decimals(double gib)
{
    if (gib >= 10) return 1;
    if (gib >= 0.1 || gib <= 0) return 2;
    return gib >= 0.01 ? 3 : 4;
}

size_t ftmem_format_gib(uint64_t bytes, char *buffer, size_t capacity)
{
    ftmem__text text = ftmem__text_in(buffer, buffer ? capacity : 0);
    double gib = (double)bytes / 1073741824.0;
    ftmem__put_real(&text, gib, text_gib_decimals(gib));
    ftmem__put(&text, " GiB");
    return text.needed;
}
