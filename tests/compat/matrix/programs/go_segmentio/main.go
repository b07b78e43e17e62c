// kafka-go: segmentio BOOTSTRAP PREFIX. Prints a line of JSON for each step.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"

	"github.com/segmentio/kafka-go"
)

const (
	records  = 50
	patience = 60 * time.Second
)

var bootstrap, prefix = os.Args[1], os.Args[2]

func main() {
	step("records", readAndWrite)
	step("group", group)
	report("group848", "-")
	report("transactions", "-")
	step("admin", administer)
}

func step(name string, act func(context.Context) error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	text := ""
	if err := act(ctx); err != nil {
		text = err.Error()
	}
	report(name, text)
}

func report(name, text string) {
	line, _ := json.Marshal(map[string]string{"step": name, "error": text})
	fmt.Println(string(line))
}

func client() *kafka.Client {
	return &kafka.Client{Addr: kafka.TCP(bootstrap), Timeout: patience}
}

func create(ctx context.Context, name string, partitions int) (string, error) {
	topic := prefix + "-" + name
	response, err := client().CreateTopics(ctx, &kafka.CreateTopicsRequest{
		Topics: []kafka.TopicConfig{{Topic: topic, NumPartitions: partitions, ReplicationFactor: 1}},
	})
	if err != nil {
		return "", err
	}
	return topic, response.Errors[topic]
}

type fixed int

func (one fixed) Balance(_ kafka.Message, _ ...int) int { return int(one) }

func write(ctx context.Context, topic string, partition int, codec kafka.Compression, values []string) error {
	writer := &kafka.Writer{
		Addr: kafka.TCP(bootstrap), Topic: topic, Balancer: fixed(partition), Compression: codec,
		RequiredAcks: kafka.RequireAll, BatchTimeout: 5 * time.Millisecond,
	}
	defer writer.Close()
	rows := []kafka.Message{}
	for _, value := range values {
		rows = append(rows, kafka.Message{Value: []byte(value)})
	}
	return writer.WriteMessages(ctx, rows...)
}

func numbered(text string) []string {
	values := []string{}
	for number := 0; number < records; number++ {
		values = append(values, fmt.Sprintf("%s %d", text, number))
	}
	return values
}

func readAndWrite(ctx context.Context) error {
	topic, err := create(ctx, "records", 1)
	if err != nil {
		return err
	}
	wanted := []string{}
	for codec := kafka.Compression(0); codec <= kafka.Zstd; codec++ {
		values := numbered(codec.String())
		if err := write(ctx, topic, 0, codec, values); err != nil {
			return err
		}
		wanted = append(wanted, values...)
	}
	reader := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{bootstrap}, Topic: topic, Partition: 0, MaxWait: 200 * time.Millisecond})
	defer reader.Close()
	for _, value := range wanted {
		row, err := reader.ReadMessage(ctx)
		if err != nil {
			return err
		}
		if string(row.Value) != value {
			return fmt.Errorf("found %s, wanted %s", row.Value, value)
		}
	}
	return nil
}

func group(ctx context.Context) error {
	topic, err := create(ctx, "group", 4)
	if err != nil {
		return err
	}
	for partition := 0; partition < 4; partition++ {
		if err := write(ctx, topic, partition, 0, numbered("g")); err != nil {
			return err
		}
	}
	id := prefix + "-group"
	rows := make(chan kafka.Message)
	failures := make(chan error, 2)
	for member := 0; member < 2; member++ {
		reader := kafka.NewReader(kafka.ReaderConfig{
			Brokers: []string{bootstrap}, GroupID: id, Topic: topic, StartOffset: kafka.FirstOffset, MaxWait: 200 * time.Millisecond,
		})
		defer reader.Close()
		go func() {
			for {
				row, err := reader.FetchMessage(ctx)
				if err == nil {
					err = reader.CommitMessages(ctx, row)
				}
				if err != nil {
					failures <- err
					return
				}
				rows <- row
			}
		}()
	}
	found := map[string]bool{}
	for len(found) < 4*records {
		select {
		case row := <-rows:
			found[fmt.Sprint(row.Partition, "/", row.Offset)] = true
		case err := <-failures:
			return err
		}
	}
	response, err := client().OffsetFetch(ctx, &kafka.OffsetFetchRequest{GroupID: id, Topics: map[string][]int{topic: {0, 1, 2, 3}}})
	if err != nil {
		return err
	}
	for _, row := range response.Topics[topic] {
		if row.CommittedOffset != records {
			return fmt.Errorf("partition %d is committed at %d", row.Partition, row.CommittedOffset)
		}
	}
	return nil
}

func administer(ctx context.Context) error {
	topic, err := create(ctx, "admin", 1)
	if err != nil {
		return err
	}
	one := client()
	grown, err := one.CreatePartitions(ctx, &kafka.CreatePartitionsRequest{
		Topics: []kafka.TopicPartitionsConfig{{Name: topic, Count: 3}},
	})
	if err != nil {
		return err
	}
	if err := grown.Errors[topic]; err != nil {
		return err
	}
	if _, err := one.IncrementalAlterConfigs(ctx, &kafka.IncrementalAlterConfigsRequest{
		Resources: []kafka.IncrementalAlterConfigsRequestResource{{
			ResourceType: kafka.ResourceTypeTopic, ResourceName: topic,
			Configs: []kafka.IncrementalAlterConfigsRequestConfig{{Name: "retention.ms", Value: "60000", ConfigOperation: kafka.ConfigOperationSet}},
		}},
	}); err != nil {
		return err
	}
	described, err := one.DescribeConfigs(ctx, &kafka.DescribeConfigsRequest{
		Resources: []kafka.DescribeConfigRequestResource{{ResourceType: kafka.ResourceTypeTopic, ResourceName: topic}},
	})
	if err != nil {
		return err
	}
	for _, entry := range described.Resources[0].ConfigEntries {
		if entry.ConfigName == "retention.ms" && entry.ConfigValue != "60000" {
			return fmt.Errorf("retention.ms is %s", entry.ConfigValue)
		}
	}
	gone, err := one.DeleteTopics(ctx, &kafka.DeleteTopicsRequest{Topics: []string{topic}})
	if err != nil {
		return err
	}
	return gone.Errors[topic]
}
