"""Pictures with targets in separate files: masks, and boxes in the formats of COCO, YOLO or Pascal VOC."""
