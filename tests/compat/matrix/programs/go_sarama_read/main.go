// Sarama: BOOTSTRAP TOPIC PARTITIONS. Prints "partition offset value", in Base64, for each record from the beginning, until its
// standard input ends.
package main

import (
	"bufio"
	"encoding/base64"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/IBM/sarama"
)

func main() {
	count, err := strconv.Atoi(os.Args[3])
	if err != nil {
		panic(err)
	}
	config := sarama.NewConfig()
	config.Version = sarama.MaxVersion
	config.Consumer.Return.Errors = true
	config.Consumer.Retry.Backoff = 100 * time.Millisecond
	consumer, err := sarama.NewConsumer(strings.Split(os.Args[1], ","), config)
	if err != nil {
		panic(err)
	}
	out := bufio.NewWriter(os.Stdout)
	var lock sync.Mutex
	for partition := 0; partition < count; partition++ {
		rows, err := consumer.ConsumePartition(os.Args[2], int32(partition), sarama.OffsetOldest)
		if err != nil {
			panic(err)
		}
		go func() {
			for row := range rows.Messages() {
				lock.Lock()
				fmt.Fprintln(out, row.Partition, row.Offset, base64.StdEncoding.EncodeToString(row.Value))
				lock.Unlock()
			}
		}()
		go func() {
			for err := range rows.Errors() {
				fmt.Fprintln(os.Stderr, err)
			}
		}()
	}
	go func() {
		for {
			time.Sleep(100 * time.Millisecond)
			lock.Lock()
			out.Flush()
			lock.Unlock()
		}
	}()
	io.Copy(io.Discard, os.Stdin)
}
