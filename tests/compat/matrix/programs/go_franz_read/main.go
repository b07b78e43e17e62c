// franz-go: BOOTSTRAP TOPIC PARTITIONS. Prints "partition offset value", in Base64, for each record from the beginning, until its
// standard input ends.
package main

import (
	"bufio"
	"context"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	from := map[int32]kgo.Offset{}
	for partition := 0; partition < count; partition++ {
		from[int32(partition)] = kgo.NewOffset().AtStart()
	}
	one, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(os.Args[1], ",")...),
		kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{os.Args[2]: from}),
		kgo.ConsumeResetOffset(kgo.NoResetOffset()),
		kgo.RetryBackoffFn(func(int) time.Duration { return 50 * time.Millisecond }),
	)
	if err != nil {
		panic(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		io.Copy(io.Discard, os.Stdin)
		cancel()
	}()
	out := bufio.NewWriter(os.Stdout)
	for ctx.Err() == nil {
		fetches := one.PollFetches(ctx)
		fetches.EachError(func(_ string, partition int32, err error) {
			if ctx.Err() == nil {
				fmt.Fprintln(os.Stderr, partition, err)
			}
		})
		fetches.EachRecord(func(row *kgo.Record) {
			fmt.Fprintln(out, row.Partition, row.Offset, base64.StdEncoding.EncodeToString(row.Value))
		})
		out.Flush()
	}
}
