// A program that does without the C library: goroutines, garbage, signals of its own, faults, files
// and children. It prints the same whatever memory there is.
package main

import (
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"
)

type node struct {
	left, right *node
	value       int
}

func tree(depth, value int) *node {
	if depth == 0 {
		return &node{value: value}
	}
	return &node{tree(depth-1, 2*value), tree(depth-1, 2*value+1), value}
}

func (n *node) sum() int {
	if n == nil {
		return 0
	}
	return n.value + n.left.sum() + n.right.sum()
}

func main() {
	count := 20000
	if len(os.Args) > 1 {
		count, _ = strconv.Atoi(os.Args[1])
	}
	// 1. Goroutines that wait for each other, each with a stack of its own.
	var all sync.WaitGroup
	results := make(chan int, 128)
	gate := make(chan struct{})
	for n := 0; n < count; n++ {
		all.Add(1)
		go func(n int) {
			defer all.Done()
			var block [512]int
			block[n%512] = n
			<-gate
			results <- block[n%512]
		}(n)
	}
	close(gate)
	go func() { all.Wait(); close(results) }()
	total := 0
	for value := range results {
		total += value
	}
	fmt.Println("goroutines", count, total)
	// 2. Trees that become garbage, and one that stays.
	kept := tree(16, 1)
	for n := 0; n < 20; n++ {
		if tree(14, 1).sum() == 0 {
			fmt.Println("WRONG: a tree")
		}
	}
	runtime.GC()
	fmt.Println("tree", kept.sum())
	// 3. A map.
	table := map[string][]byte{}
	for n := 0; n < 100000; n++ {
		table[strconv.Itoa(n)] = make([]byte, 400)
	}
	bytes := 0
	for key, value := range table {
		bytes += len(key) + len(value)
	}
	fmt.Println("map", len(table), bytes)
	// 4. A loop that is preempted by a signal.
	done := make(chan bool)
	var stop sync.Mutex
	stop.Lock()
	go func() {
		x := uint64(1)
		for end := time.Now().Add(20 * time.Millisecond); ; {
			for i := 0; i < 1<<20; i++ {
				x = x*6364136223846793005 + 1
			}
			if time.Now().After(end) {
				break
			}
		}
		done <- x != 0
	}()
	runtime.GC()
	fmt.Println("loop", <-done)
	// 5. A fault of the program's own.
	func() {
		defer func() { fmt.Println("recovered", recover()) }()
		var none *node
		fmt.Println(none.value)
	}()
	// 6. Files.
	file, err := os.CreateTemp("", "many")
	if err != nil {
		fmt.Println("WRONG", err)
	}
	os.Remove(file.Name())
	big := make([]byte, 8<<20)
	for n := range big {
		big[n] = byte(n >> 12)
	}
	file.Write(big)
	again := make([]byte, 8<<20)
	file.ReadAt(again, 0)
	fmt.Println("file", string(again) == string(big))
	// 7. Signals of others.
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGUSR1, syscall.SIGBUS)
	syscall.Kill(os.Getpid(), syscall.SIGUSR1)
	fmt.Println("signal", <-signals)
	syscall.Kill(os.Getpid(), syscall.SIGBUS)
	fmt.Println("signal", <-signals)
	// 8. Threads that begin and end while signals come, which no thread has blocked.
	until := time.Now().Add(300 * time.Millisecond)
	var sender sync.WaitGroup
	sender.Add(1)
	go func() {
		for time.Now().Before(until) {
			syscall.Kill(os.Getpid(), syscall.SIGBUS)
			time.Sleep(500 * time.Microsecond)
		}
		sender.Done()
	}()
	begun := 0
	for time.Now().Before(until) {
		var threads sync.WaitGroup
		for n := 0; n < 8; n++ {
			threads.Add(1)
			go func() {
				runtime.LockOSThread()
				threads.Done()
			}()
		}
		threads.Wait()
		begun += 8
	}
	sender.Wait()
	fmt.Println("threads", begun > 0, <-signals)
	// 9. Children.
	for n := 0; n < 3; n++ {
		child := exec.Command("sh", "-c", "cat; echo $GREETING")
		child.Env = append(os.Environ(), "GREETING=hello")
		child.Stdin = strings.NewReader("from standard input, ")
		output, err := child.CombinedOutput()
		fmt.Printf("child %q %v\n", output, err)
	}
	_, err = exec.Command("/no/such/program").Output()
	fmt.Println("no child", err)
}
