/* Algorithm 10 in C with a mistake. It reads a case and writes what it computes into the folder dump beside it:

       python scripts/crosscheck.py --write-case case --algorithm 10
       cc -O2 -o decoder docs/examples/decoder.c -lm && ./decoder case
       python scripts/crosscheck.py --of case/dump
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static char folder[512], json[1 << 20], header[1 << 16];
static float *numbers;

/* A file for each tensor: NAME.SHAPE.f32, its numbers one after the other. */
static void dump(const char *name, int layer, const float *data, int rows, int columns) {
    char path[1024];
    snprintf(path, sizeof path, "%s/dump/%s%d.%dx%d.f32", folder, name, layer, rows, columns);
    FILE *file = fopen(path, "wb");
    fwrite(data, sizeof *data, (size_t)rows * columns, file);
    fclose(file);
}

static int number(const char *name) { /* of case.json */
    char key[64];
    snprintf(key, sizeof key, "\"%s\":", name);
    return atoi(strstr(json, key) + strlen(key));
}

static const float *theta(const char *name, int layer) { /* of parameters.safetensors */
    char key[64];
    layer ? snprintf(key, sizeof key, "\"l%d/%s\":", layer, name) : snprintf(key, sizeof key, "\"%s\":", name);
    return numbers + atol(strstr(strstr(header, key), "offsets\":[") + 10) / 4;
}

/* out[t] = W in[t] + b for every token t */
static void linear(float *out, const float *in, const float *W, const float *b, int tokens, int from, int to) {
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < to; i++) {
            float sum = b ? b[i] : 0;
            for (int j = 0; j < from; j++) sum += W[i * from + j] * in[t * from + j];
            out[t * to + i] = sum;
        }
}

static void norm(float *out, const float *in, const float *gamma, const float *beta, int tokens, int d) {
    for (int t = 0; t < tokens; t++) {
        float m = 0, v = 0;
        for (int i = 0; i < d; i++) m += in[t * d + i] / d;
        for (int i = 0; i < d; i++) v += (in[t * d + i] - m) * (in[t * d + i] - m) / (d - 1); /* mistake: d */
        for (int i = 0; i < d; i++) out[t * d + i] = (in[t * d + i] - m) / sqrtf(v) * gamma[i] + beta[i];
    }
}

static void attend(float *Y, const float *Q, const float *K, const float *V, int tokens, int heads, int d) {
    int rows = heads * d;
    for (int h = 0; h < heads; h++)
        for (int t = 0; t < tokens; t++) {
            float A[64], sum = 0, *y = Y + t * rows + h * d;
            for (int u = 0; u <= t; u++) {
                float score = 0;
                for (int i = 0; i < d; i++) score += Q[t * rows + h * d + i] * K[u * rows + h * d + i];
                sum += A[u] = expf(score / sqrtf(d));
            }
            for (int i = 0; i < d; i++) y[i] = 0;
            for (int u = 0; u <= t; u++)
                for (int i = 0; i < d; i++) y[i] += A[u] / sum * V[u * rows + h * d + i];
        }
}

static void read_whole(const char *name, void *out, size_t most) {
    char path[1024];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "rb");
    if (!file || !fread(out, 1, most, file)) perror(path), exit(1);
    fclose(file);
}

int main(int count, char **arguments) {
    if (count != 2) return fprintf(stderr, "decoder: expected the folder of a case, got %d arguments\n", count - 1), 2;
    snprintf(folder, sizeof folder, "%s", arguments[1]);
    read_whole("case.json", json, sizeof json - 1);
    static char file[1 << 22];
    read_whole("parameters.safetensors", file, sizeof file);
    unsigned long long n = *(unsigned long long *)file;
    memcpy(header, file + 8, n);
    numbers = (float *)malloc(sizeof file);
    memcpy(numbers, file + 8 + n, sizeof file - 8 - n);
    char path[1024];
    snprintf(path, sizeof path, "%s/dump", folder);
    mkdir(path, 0777);

    int d = number("d_e"), hidden = number("d_mlp"), heads = number("H"), words = number("N_V"), longest = number("l_max");
    int tokens = 0, x[64];
    for (char *at = strstr(json, "\"x\": [") + 6; *at != ']'; at++)
        if (*at >= '0' && *at <= '9') x[tokens++] = strtol(at, &at, 10), at--;
    static float X[4096], N[4096], Q[4096], K[4096], V[4096], Y[4096], O[4096], U[16384], P[4096];
    for (int t = 0; t < tokens; t++)
        for (int i = 0; i < d; i++) X[t * d + i] = theta("W_e", 0)[i * words + x[t]] + theta("W_p", 0)[i * longest + t];
    dump("embedded", 0, X, tokens, d);
    for (int l = 1; l <= number("L"); l++) {
        norm(N, X, theta("gamma_1", l), theta("beta_1", l), tokens, d);
        dump("normed", l, N, tokens, d);
        linear(Q, N, theta("W_q", l), theta("b_q", l), tokens, d, d);
        linear(K, N, theta("W_k", l), theta("b_k", l), tokens, d, d);
        linear(V, N, theta("W_v", l), theta("b_v", l), tokens, d, d);
        attend(Y, Q, K, V, tokens, heads, d / heads);
        linear(O, Y, theta("W_o", l), theta("b_o", l), tokens, d, d);
        for (int i = 0; i < tokens * d; i++) X[i] += O[i];
        dump("attended", l, X, tokens, d);
        norm(N, X, theta("gamma_2", l), theta("beta_2", l), tokens, d);
        linear(U, N, theta("W_mlp1", l), theta("b_mlp1", l), tokens, d, hidden);
        for (int i = 0; i < tokens * hidden; i++) U[i] = U[i] * 0.5f * (1 + erff(U[i] / sqrtf(2)));
        linear(O, U, theta("W_mlp2", l), theta("b_mlp2", l), tokens, hidden, d);
        for (int i = 0; i < tokens * d; i++) X[i] += O[i];
        dump("layer", l, X, tokens, d);
    }
    norm(N, X, theta("gamma", 0), theta("beta", 0), tokens, d);
    linear(P, N, theta("W_u", 0), NULL, tokens, d, words);
    dump("output:logits", 0, P, tokens, words);
    return 0;
}
