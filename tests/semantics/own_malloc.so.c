/* What own_malloc.c opens: a variable of each thread's own, whose memory the loader allocates when
   the thread first uses it. */
static __thread char bytes[4096];

char *own(void);

char *own(void)
{
    return bytes;
}
