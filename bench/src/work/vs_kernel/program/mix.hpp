template <int A, int B> struct Mix {
    int x[4];
    template <class T> T fold(T seed) const {
        T r = seed;
        for (int i = 0; i < 4; ++i) {
            r = r * T(A) + T(x[i] ^ B);
            if (r > T(1000)) r = r / T(A + 1);
        }
        return r;
    }
    template <class F> int each(F f) const {
        int s = 0;
        for (int v : x) s += f(v + A);
        return s;
    }
};
